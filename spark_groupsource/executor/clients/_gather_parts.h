/* Define the parts of a librdkafka message, and columns of variable length in Arrow's layout.
 *
 * Only _gather.c includes this file, which does not know batches, runs or the queue.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* From librdkafka's public header rdkafka.h (2.15), whose layout is a stable interface: rd_kafka_message_t, and the
 * signatures of the functions below. rd_kafka_resp_err_t and rd_kafka_timestamp_type_t are C enums. */
typedef struct {
    int err;
    void *rkt;
    int32_t partition;
    void *payload; /* the text if it is an error */
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} message_t;

static struct {
    Py_ssize_t (*consume_batch_queue)(void *queue, int timeout_ms, message_t **messages, size_t size);
    void (*message_destroy)(message_t *message);
    int64_t (*message_timestamp)(const message_t *message, int *type);
    int (*message_headers)(const message_t *message, void **headers);
    int (*header_get_all)(const void *headers, size_t index, const char **name, const void **value, size_t *size);
    const char *(*topic_name)(const void *topic);
    void *(*headers_new)(size_t count);
    int (*header_add)(void *headers, const char *name, Py_ssize_t name_size, const void *value, Py_ssize_t size);
    void (*headers_destroy)(void *headers);
    int names_have_sizes; /* set by prove_name_sizes() */
} rdkafka;

/* The error code of a record without headers. Any other one: it has some, and they cannot be read. librdkafka reads no
 * more than 100,000 of a record. */
#define NO_HEADERS (-156)

/* Largest milliseconds of a Spark timestamp (microseconds in 64 bits), and the shift of Kafka's types to Spark's. */
#define TIMESTAMP_MS_MAX (INT64_MAX / 1000)
#define TIMESTAMP_TYPE_SHIFT 1

/* The final size of a column. */
typedef struct {
    size_t rows, nulls, bytes;
} column_size_t;

/* A column of variable length while it is filled; `validity` is NULL if no value is null. */
typedef struct {
    PyObject *validity, *offsets, *data;
    unsigned char *bits, *offset_at, *data_at;
    size_t row, position;
} column_t;

static inline void put32(unsigned char *at, int32_t value) { memcpy(at, &value, sizeof value); }
static inline void put64(unsigned char *at, int64_t value) { memcpy(at, &value, sizeof value); }

/* --- one record's parts */

/* Read the timestamp in ms, -1 if it has none. Return whether Spark can hold it. */
static int timestamp_of(const message_t *message, int64_t *ms, int *type)
{
    *type = 0;
    *ms = rdkafka.message_timestamp(message, type);
    if (*type == 0)
        *ms = -1;
    return *ms >= -TIMESTAMP_MS_MAX && *ms <= TIMESTAMP_MS_MAX;
}

static void *headers_of(const message_t *message)
{
    void *headers = NULL;
    return rdkafka.message_headers(message, &headers) == 0 ? headers : NULL;
}

static int has_readable_headers(const message_t *message)
{
    void *headers;
    int error = rdkafka.message_headers(message, &headers);
    return error == 0 || error == NO_HEADERS;
}

/* librdkafka returns a header's name as a C string, and so without the part from a zero byte on. It has the whole name:
 * its size lies two words before it (rd_kafka_header_t in rdkafka_header.h, which is not a public header). */
static size_t stored_name_size(const char *name)
{
    size_t size;
    memcpy(&size, name - 2 * sizeof(void *), sizeof size);
    return size;
}

/* Return whether this librdkafka keeps names as described above: read names with zero bytes that were added by its
 * public interface, with a value and without one. */
static int prove_name_sizes(void)
{
    static const char given[] = "a\0\0bcdefghijklmnopq";
    int proved = 1;
    void *headers = rdkafka.headers_new(1);
    if (headers == NULL)
        return 0;
    for (size_t size = 1; proved && size < sizeof given; size++) {
        const char *name;
        const void *value;
        size_t value_size;
        proved = rdkafka.header_add(headers, given, (Py_ssize_t)size, size % 2 ? "value" : NULL, size % 2 ? 5 : 0) == 0 &&
                 rdkafka.header_get_all(headers, size - 1, &name, &value, &value_size) == 0 &&
                 stored_name_size(name) == size && memcmp(name, given, size) == 0;
    }
    rdkafka.headers_destroy(headers);
    return proved;
}

/* Read a header's name as UTF-8, as Arrow strings require. Other bytes are replaced, as Java does. `*owner` keeps the
 * memory alive if it is not the message's own. Return -1 with an exception on failure. */
static int header_name(const char *name, const char **text, size_t *size, PyObject **owner)
{
    Py_ssize_t encoded;
    *owner = NULL;
    *text = name;
    *size = rdkafka.names_have_sizes ? stored_name_size(name) : strlen(name);
    for (size_t i = 0; i < *size; i++) {
        if ((unsigned char)name[i] < 0x80)
            continue;
        *owner = PyUnicode_DecodeUTF8(name, (Py_ssize_t)*size, "replace");
        *text = *owner != NULL ? PyUnicode_AsUTF8AndSize(*owner, &encoded) : NULL;
        if (*text == NULL) {
            Py_CLEAR(*owner);
            return -1;
        }
        *size = (size_t)encoded;
        break;
    }
    return 0;
}

static void count_value(column_size_t *column, const void *data, size_t size)
{
    column->rows++;
    if (data == NULL)
        column->nulls++;
    else
        column->bytes += size;
}

/* --- columns */

static PyObject *new_buffer(size_t size, unsigned char **at)
{
    PyObject *buffer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (buffer != NULL)
        *at = (unsigned char *)PyBytes_AsString(buffer);
    return buffer;
}

static int start_column(column_t *column, const column_size_t *size)
{
    memset(column, 0, sizeof *column);
    if (size->nulls > 0) {
        size_t bits = (size->rows + 7) / 8;
        if ((column->validity = new_buffer(bits, &column->bits)) == NULL)
            return -1;
        memset(column->bits, 0, bits);
    }
    if ((column->offsets = new_buffer((size->rows + 1) * sizeof(int32_t), &column->offset_at)) == NULL ||
        (column->data = new_buffer(size->bytes, &column->data_at)) == NULL)
        return -1;
    put32(column->offset_at, 0);
    return 0;
}

/* Mark the next row as present or null, and write the end of its data. */
static void end_row(column_t *column, int there)
{
    if (there && column->bits != NULL)
        column->bits[column->row / 8] |= (unsigned char)(1U << (column->row % 8));
    column->row++;
    put32(column->offset_at + column->row * sizeof(int32_t), (int32_t)column->position);
}

static void add_value(column_t *column, const void *data, size_t size)
{
    if (data != NULL && size > 0) {
        memcpy(column->data_at + column->position, data, size);
        column->position += size;
    }
    end_row(column, data != NULL);
}

static void drop_column(column_t *column)
{
    Py_CLEAR(column->validity);
    Py_CLEAR(column->offsets);
    Py_CLEAR(column->data);
}

/* Return (validity or None, offsets, data, number of nulls). Takes over the column's references. */
static PyObject *finish_column(column_t *column, const column_size_t *size)
{
    PyObject *validity = column->validity, *offsets = column->offsets, *data = column->data;
    memset(column, 0, sizeof *column);
    if (validity == NULL)
        validity = Py_NewRef(Py_None);
    return Py_BuildValue("(NNNn)", validity, offsets, data, (Py_ssize_t)size->nulls);
}
