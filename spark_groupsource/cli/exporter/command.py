"""`exporter`: serve the metrics of consumer groups until the program is stopped."""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.cli.arguments import ExporterCommand
from spark_groupsource.cli.exporter.rounds import Exporter
from spark_groupsource.cli.output import Output
from spark_groupsource.errors import CommandError


def serve_metrics(
    command: ExporterCommand, exporter: Exporter, output: Output, pause: Callable[[float], object]
) -> None:
    """Listen, then measure round after round. Ends only by an exception.

    Raises `CommandError` without prometheus_client, or if the address cannot be listened on.
    """
    try:
        # This extra may be missing, and no other command needs it.
        from spark_groupsource.prometheus.server import MetricsServer, is_about_port  # noqa: PLC0415
    except ImportError:
        raise CommandError(
            errors.COMMAND_EXTRA_MISSING, command="exporter", package="prometheus_client", extra="metrics"
        ) from None
    try:
        server = MetricsServer(command.address, command.port, exporter.samples)
    except OSError as error:
        option, reason = "--port" if is_about_port(error) else "--address", error.strerror or str(error)
        raise CommandError(
            errors.LISTENING_FAILED, option=option, address=command.address, port=command.port, reason=reason
        ) from None
    try:
        host = f"[{command.address}]" if ":" in command.address else command.address
        output.print_line(f"metrics at http://{host}:{server.port}/metrics")
        while True:
            exporter.round()
            pause(command.interval_s)
    finally:
        server.close()
