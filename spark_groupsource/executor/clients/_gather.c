/* Read messages from a librdkafka queue and copy them into the memory of Arrow arrays.
 *
 * Duty: one call of `gather` consumes a batch and cuts it into runs, which are consecutive records of one partition. It
 * returns each run as bytes objects in the layout of Arrow's buffers: validity bits, 32-bit offsets, data. Python builds
 * arrays on them without a copy (arrow_buffers.py). Errors and end-of-partition events are returned as tuples. This file
 * does not use Arrow's C++ and does not link against librdkafka: it uses the library that the confluent-kafka wheel has
 * loaded, and gets the addresses of its functions (`connect`).
 *
 * Invariants: every consumed message is destroyed before `gather` returns, also if it fails. A run ends before its
 * data would exceed `max_bytes`; a larger single record is a run of its own. So every offset fits 32 bits.
 * One thread at a time per queue; the GIL is released while waiting, copying and destroying.
 */
#include "_gather_parts.h"

#include <stdlib.h>

/* Version of the arguments and results of connect() and gather(). Raise it with every change: Python then rejects a
 * stale build. */
#define GATHER_VERSION 4

enum kind { KIND_RUN, KIND_EVENT, KIND_TIMESTAMP, KIND_HEADERS };

/* Counted per header in addition to its bytes, so that many empty headers stay within 32-bit offsets, too. */
#define HEADER_COST 16
#define MESSAGES_MAX 1000000

typedef struct {
    column_size_t keys, values;
    size_t total_bytes;
    /* headers: `lists` counts records (null: without headers), the others count headers */
    column_size_t lists, names, contents;
} run_size_t;

/* --- the size of a run */

/* Add one record's headers. Return -1 with an exception on failure. */
static int count_headers(run_size_t *run, const message_t *message)
{
    const char *name, *text;
    const void *value;
    size_t size, name_size, count = 0, before = run->names.bytes + run->contents.bytes;
    const void *headers = headers_of(message);

    for (; headers != NULL && rdkafka.header_get_all(headers, count, &name, &value, &size) == 0; count++) {
        PyObject *owner;
        if (header_name(name, &text, &name_size, &owner) < 0)
            return -1;
        count_value(&run->names, text, name_size);
        count_value(&run->contents, value, size);
        Py_XDECREF(owner);
    }
    count_value(&run->lists, count > 0 ? headers : NULL, 0);
    run->total_bytes += run->names.bytes + run->contents.bytes - before + count * HEADER_COST;
    return 0;
}

/* Measure the run that starts at the first message: of one partition, within the bound, with timestamps that Spark can
 * hold and headers that can be read. Return its rows; 0 if the first record is not so; -1 with an exception on
 * failure. */
static Py_ssize_t measure_run(message_t *const *messages, size_t count, int headers, size_t max_bytes, run_size_t *run)
{
    size_t rows = 0;
    memset(run, 0, sizeof *run);
    for (; rows < count; rows++) {
        const message_t *message = messages[rows];
        run_size_t larger = *run;
        int64_t ms;
        int type;
        if (message->err != 0 || message->rkt != messages[0]->rkt || message->partition != messages[0]->partition ||
            !timestamp_of(message, &ms, &type) || (headers && !has_readable_headers(message)))
            break;
        count_value(&larger.keys, message->key, message->key_len);
        count_value(&larger.values, message->payload, message->len);
        larger.total_bytes += (message->key != NULL ? message->key_len : 0);
        larger.total_bytes += (message->payload != NULL ? message->len : 0);
        if (headers && count_headers(&larger, message) < 0)
            return -1;
        if (rows > 0 && larger.total_bytes > max_bytes)
            break;
        *run = larger;
    }
    if (run->total_bytes > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "a record of %zu bytes is beyond an Arrow array", run->total_bytes);
        return -1;
    }
    return (Py_ssize_t)rows;
}

/* Return (lists, number of headers, names, values). Needs the GIL for names that are not ASCII. */
static PyObject *gather_headers(message_t *const *messages, const run_size_t *run)
{
    column_t lists = {0}, names = {0}, contents = {0};
    PyObject *parts[3] = {NULL, NULL, NULL}, *result = NULL;

    if (start_column(&lists, &run->lists) < 0 || start_column(&names, &run->names) < 0 ||
        start_column(&contents, &run->contents) < 0)
        goto done;
    for (size_t row = 0; row < run->lists.rows; row++) {
        const void *value, *headers = headers_of(messages[row]);
        const char *name, *text;
        size_t size, name_size, count = 0;
        for (; headers != NULL && rdkafka.header_get_all(headers, count, &name, &value, &size) == 0; count++) {
            PyObject *owner;
            if (header_name(name, &text, &name_size, &owner) < 0)
                goto done;
            add_value(&names, text, name_size);
            add_value(&contents, value, size);
            Py_XDECREF(owner);
        }
        lists.position += count;
        end_row(&lists, count > 0);
    }
    if ((parts[0] = finish_column(&lists, &run->lists)) != NULL &&
        (parts[1] = finish_column(&names, &run->names)) != NULL &&
        (parts[2] = finish_column(&contents, &run->contents)) != NULL)
        result = Py_BuildValue("(OnOO)", parts[0], (Py_ssize_t)run->names.rows, parts[1], parts[2]);
done:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(parts[i]);
    drop_column(&lists);
    drop_column(&names);
    drop_column(&contents);
    return result;
}

/* --- runs */

/* Build the columns of fixed width: offsets, timestamps in us, timestamp types. */
typedef struct {
    PyObject *offsets, *timestamps, *types;
    unsigned char *offset_at, *timestamp_at, *type_at;
} numbers_t;

static void copy_run(message_t *const *messages, size_t rows, column_t *keys, column_t *values, numbers_t *numbers)
{
    for (size_t row = 0; row < rows; row++) {
        const message_t *message = messages[row];
        int64_t ms;
        int type;
        (void)timestamp_of(message, &ms, &type);
        add_value(keys, message->key, message->key_len);
        add_value(values, message->payload, message->len);
        put64(numbers->offset_at + row * sizeof(int64_t), message->offset);
        put64(numbers->timestamp_at + row * sizeof(int64_t), ms * 1000);
        put32(numbers->type_at + row * sizeof(int32_t), type - TIMESTAMP_TYPE_SHIFT);
    }
}

/* Return (KIND_RUN, topic, partition, rows, keys, values, offsets, timestamps, types, headers or None). */
static PyObject *gather_run(message_t *const *messages, const run_size_t *run, int headers)
{
    size_t rows = run->keys.rows;
    column_t keys = {0}, values = {0};
    numbers_t numbers = {0};
    PyObject *key_part = NULL, *value_part = NULL, *header_part = NULL, *result = NULL;

    if (start_column(&keys, &run->keys) < 0 || start_column(&values, &run->values) < 0 ||
        (numbers.offsets = new_buffer(rows * sizeof(int64_t), &numbers.offset_at)) == NULL ||
        (numbers.timestamps = new_buffer(rows * sizeof(int64_t), &numbers.timestamp_at)) == NULL ||
        (numbers.types = new_buffer(rows * sizeof(int32_t), &numbers.type_at)) == NULL)
        goto done;
    Py_BEGIN_ALLOW_THREADS
    copy_run(messages, rows, &keys, &values, &numbers);
    Py_END_ALLOW_THREADS
    header_part = headers ? gather_headers(messages, run) : Py_NewRef(Py_None);
    if (header_part != NULL && (key_part = finish_column(&keys, &run->keys)) != NULL &&
        (value_part = finish_column(&values, &run->values)) != NULL)
        result = Py_BuildValue("(isinOOOOOO)", KIND_RUN, rdkafka.topic_name(messages[0]->rkt),
                               (int)messages[0]->partition, (Py_ssize_t)rows, key_part, value_part, numbers.offsets, numbers.timestamps,
                               numbers.types, header_part);
done:
    drop_column(&keys);
    drop_column(&values);
    Py_XDECREF(numbers.offsets);
    Py_XDECREF(numbers.timestamps);
    Py_XDECREF(numbers.types);
    Py_XDECREF(key_part);
    Py_XDECREF(value_part);
    Py_XDECREF(header_part);
    return result;
}

/* Return (KIND_EVENT, topic or None, partition, offset, error code, text). */
static PyObject *event_of(const message_t *message)
{
    const char *topic = message->rkt != NULL ? rdkafka.topic_name(message->rkt) : NULL;
    const char *text = message->payload != NULL ? (const char *)message->payload : "";
    PyObject *shown = PyUnicode_DecodeUTF8(text, message->payload != NULL ? (Py_ssize_t)message->len : 0, "replace");
    if (shown == NULL)
        return NULL;
    return Py_BuildValue("(iziLiN)", KIND_EVENT, topic, (int)message->partition, (long long)message->offset,
                         message->err, shown);
}

/* Return (KIND_TIMESTAMP or KIND_HEADERS, topic, partition, offset, timestamp) for a record that no row can hold. */
static PyObject *misfit_of(const message_t *message)
{
    int64_t ms;
    int type, kind = timestamp_of(message, &ms, &type) ? KIND_HEADERS : KIND_TIMESTAMP;
    return Py_BuildValue("(isiLL)", kind, rdkafka.topic_name(message->rkt), (int)message->partition,
                         (long long)message->offset, (long long)ms);
}

/* Return the next item; set `used` to the number of its messages. */
static PyObject *next_item(message_t *const *messages, size_t count, int headers, size_t max_bytes, size_t *used)
{
    run_size_t run;
    Py_ssize_t rows;
    *used = 1;
    if (messages[0]->err != 0)
        return event_of(messages[0]);
    rows = measure_run(messages, count, headers, max_bytes, &run);
    if (rows < 0)
        return NULL;
    if (rows == 0)
        return misfit_of(messages[0]);
    *used = (size_t)rows;
    return gather_run(messages, &run, headers);
}

/* --- the module */

/* Wait for a first message, then read the messages that are ready: the library itself would wait for its whole timeout
 * for a full batch. It adds all records of a partition that an answer has to the queue at once. */
static size_t consume(void *queue, message_t **messages, size_t size, int timeout_ms)
{
    Py_ssize_t more, count = rdkafka.consume_batch_queue(queue, timeout_ms, messages, 1);
    if (count <= 0)
        return 0;
    if (size == 1)
        return 1;
    more = rdkafka.consume_batch_queue(queue, 0, messages + 1, size - 1);
    return 1 + (more > 0 ? (size_t)more : 0);
}

static PyObject *gather(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    unsigned long long queue;
    int timeout_ms, headers;
    Py_ssize_t size, max_bytes;
    size_t count, used = 0;
    message_t **messages;
    PyObject *items, *type, *value, *traceback;

    if (!PyArg_ParseTuple(arguments, "Knipn", &queue, &size, &timeout_ms, &headers, &max_bytes))
        return NULL;
    if (rdkafka.consume_batch_queue == NULL || queue == 0) {
        PyErr_SetString(PyExc_RuntimeError, "connect() comes first, and the queue must not be null");
        return NULL;
    }
    if (size < 1 || size > MESSAGES_MAX || timeout_ms < 0 || max_bytes < 1 || max_bytes > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "gather(): out of range");
        return NULL;
    }
    if ((items = PyList_New(0)) == NULL || (messages = malloc((size_t)size * sizeof *messages)) == NULL) {
        Py_XDECREF(items);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    count = consume((void *)(uintptr_t)queue, messages, (size_t)size, timeout_ms);
    Py_END_ALLOW_THREADS
    for (size_t at = 0; at < count && items != NULL; at += used) {
        PyObject *item = next_item(messages + at, count - at, headers, (size_t)max_bytes, &used);
        if (item == NULL || PyList_Append(items, item) < 0)
            Py_CLEAR(items);
        Py_XDECREF(item);
    }
    PyErr_Fetch(&type, &value, &traceback);
    Py_BEGIN_ALLOW_THREADS
    for (size_t at = 0; at < count; at++)
        rdkafka.message_destroy(messages[at]);
    free(messages);
    Py_END_ALLOW_THREADS
    PyErr_Restore(type, value, traceback);
    return items;
}

static PyObject *connect_library(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    unsigned long long at[9];
    if (!PyArg_ParseTuple(arguments, "KKKKKKKKK", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &at[7], &at[8]))
        return NULL;
    for (int i = 0; i < 9; i++) {
        if (at[i] == 0) {
            PyErr_SetString(PyExc_ValueError, "connect(): an address is null");
            return NULL;
        }
    }
    rdkafka.consume_batch_queue = (Py_ssize_t (*)(void *, int, message_t **, size_t))(uintptr_t)at[0];
    rdkafka.message_destroy = (void (*)(message_t *))(uintptr_t)at[1];
    rdkafka.message_timestamp = (int64_t (*)(const message_t *, int *))(uintptr_t)at[2];
    rdkafka.message_headers = (int (*)(const message_t *, void **))(uintptr_t)at[3];
    rdkafka.header_get_all =
        (int (*)(const void *, size_t, const char **, const void **, size_t *))(uintptr_t)at[4];
    rdkafka.topic_name = (const char *(*)(const void *))(uintptr_t)at[5];
    rdkafka.headers_new = (void *(*)(size_t))(uintptr_t)at[6];
    rdkafka.header_add =
        (int (*)(void *, const char *, Py_ssize_t, const void *, Py_ssize_t))(uintptr_t)at[7];
    rdkafka.headers_destroy = (void (*)(void *))(uintptr_t)at[8];
    rdkafka.names_have_sizes = prove_name_sizes();
    return PyBool_FromLong(rdkafka.names_have_sizes);
}

static PyMethodDef methods[] = {
    {"connect", connect_library, METH_VARARGS,
     "Take the addresses of rd_kafka_consume_batch_queue, message_destroy, message_timestamp, message_headers,"
     " header_get_all, topic_name, headers_new, header_add and headers_destroy. Return whether names of headers are read"
     " whole; otherwise a zero byte ends them."},
    {"gather", gather, METH_VARARGS,
     "gather(queue, max_messages, timeout_ms, headers, max_bytes): return a list of runs and events."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_gather",
    .m_doc = "Message batches of librdkafka as Arrow buffers.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gather(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", GATHER_VERSION) < 0)
        Py_CLEAR(module);
    return module;
}
