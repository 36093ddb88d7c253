/* Stands in for Hadoop's libhdfs in tests: the functions that pyarrow needs, on local files.
 *
 * Two things are as in libhdfs. Connecting starts a JVM inside the process, with the options of LIBHDFS_OPTS, as
 * jni_helper.c does. Opening a missing file prints a Java stack trace.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jni.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int kind; /* 'F' or 'D' */
    char *name;
    time_t modified;
    int64_t size;
    short replication;
    int64_t block_size;
    char *owner;
    char *group;
    short permissions;
    time_t accessed;
} hdfsFileInfo;

static char builder, filesystem;

static int start_jvm(void) {
    static JavaVM *vm;
    JavaVMOption options[16];
    JavaVMInitArgs args = {JNI_VERSION_1_8, 0, options, JNI_TRUE};
    JNIEnv *env;
    char *given = getenv("LIBHDFS_OPTS");
    if (vm) return 0;
    options[args.nOptions++].optionString = "-Xmx32m";
    given = given ? strdup(given) : NULL;
    for (char *one = given ? strtok(given, " ") : NULL; one && args.nOptions < 16; one = strtok(NULL, " "))
        options[args.nOptions++].optionString = one;
    return JNI_CreateJavaVM(&vm, (void **)&env, &args);
}

static int fill(hdfsFileInfo *info, const char *path) {
    struct stat found;
    char name[4200];
    if (stat(path, &found)) return -1;
    memset(info, 0, sizeof *info);
    info->kind = S_ISDIR(found.st_mode) ? 'D' : 'F';
    snprintf(name, sizeof name, "hdfs://tests:8020%s", path);
    info->name = strdup(name);
    info->owner = strdup("");
    info->group = strdup("");
    info->modified = found.st_mtime;
    info->size = found.st_size;
    return 0;
}

void *hdfsNewBuilder(void) { return &builder; }
void hdfsBuilderSetNameNode(void *b, const char *v) { (void)b, (void)v; }
void hdfsBuilderSetNameNodePort(void *b, uint16_t v) { (void)b, (void)v; }
void hdfsBuilderSetUserName(void *b, const char *v) { (void)b, (void)v; }
void hdfsBuilderSetKerbTicketCachePath(void *b, const char *v) { (void)b, (void)v; }
void hdfsBuilderSetForceNewInstance(void *b) { (void)b; }
int hdfsBuilderConfSetStr(void *b, const char *k, const char *v) { return (void)b, (void)k, (void)v, 0; }
void *hdfsBuilderConnect(void *b) { return (void)b, start_jvm() ? NULL : &filesystem; }
int hdfsDisconnect(void *fs) { return (void)fs, 0; }

hdfsFileInfo *hdfsGetPathInfo(void *fs, const char *path) {
    hdfsFileInfo *info = malloc(sizeof *info);
    (void)fs;
    if (fill(info, path) == 0) return info;
    free(info);
    errno = ENOENT;
    return NULL;
}

hdfsFileInfo *hdfsListDirectory(void *fs, const char *path, int *count) {
    DIR *folder = opendir(path);
    hdfsFileInfo *found = NULL;
    struct dirent *entry;
    char full[4096];
    (void)fs;
    *count = 0;
    if (!folder) return errno = ENOENT, NULL;
    while ((entry = readdir(folder))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(full, sizeof full, "%s/%s", path, entry->d_name);
        found = realloc(found, (*count + 1) * sizeof *found);
        if (fill(&found[*count], full) == 0) ++*count;
    }
    closedir(folder);
    errno = 0;
    return found;
}

void hdfsFreeFileInfo(hdfsFileInfo *info, int count) {
    for (int i = 0; i < count; i++) free(info[i].name), free(info[i].owner), free(info[i].group);
    free(info);
}

int hdfsExists(void *fs, const char *path) { return (void)fs, access(path, F_OK); }

int hdfsCreateDirectory(void *fs, const char *path) {
    char upper[4096];
    (void)fs;
    for (const char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(upper, sizeof upper, "%.*s", (int)(at - path), path);
        mkdir(upper, 0777);
    }
    return mkdir(path, 0777) && errno != EEXIST ? -1 : 0;
}

int hdfsDelete(void *fs, const char *path, int recursive) { return (void)fs, (void)recursive, remove(path); }

/* Writes if the flags are O_WRONLY, as libhdfs does: the file is created, or replaced. */
void *hdfsOpenFile(void *fs, const char *path, int flags, int buffer, short replication, int32_t block) {
    int descriptor = flags & O_WRONLY ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : open(path, O_RDONLY);
    (void)fs, (void)buffer, (void)replication, (void)block;
    if (descriptor < 0) {
        fprintf(stderr, "hdfsOpenFile(%s) error:\njava.io.FileNotFoundException: File does not exist\n\tat stand.in\n",
                path);
        return errno = ENOENT, NULL;
    }
    return (void *)(intptr_t)(descriptor + 1);
}

int hdfsCloseFile(void *fs, void *file) { return (void)fs, close((int)(intptr_t)file - 1); }
int32_t hdfsRead(void *fs, void *file, void *into, int32_t size) {
    return (void)fs, (int32_t)read((int)(intptr_t)file - 1, into, size);
}
int32_t hdfsPread(void *fs, void *file, int64_t at, void *into, int32_t size) {
    return (void)fs, (int32_t)pread((int)(intptr_t)file - 1, into, size, at);
}
int32_t hdfsWrite(void *fs, void *file, const void *from, int32_t size) {
    return (void)fs, (int32_t)write((int)(intptr_t)file - 1, from, size);
}
int hdfsFlush(void *fs, void *file) { return (void)fs, (void)file, 0; }
int hdfsSeek(void *fs, void *file, int64_t at) { return (void)fs, lseek((int)(intptr_t)file - 1, at, SEEK_SET) < 0; }
int64_t hdfsTell(void *fs, void *file) { return (void)fs, lseek((int)(intptr_t)file - 1, 0, SEEK_CUR); }
int hdfsAvailable(void *fs, void *file) { return (void)fs, (void)file, 0; }

char *hdfsGetWorkingDirectory(void *fs, char *into, size_t size) { return (void)fs, (void)size, strcpy(into, "hdfs://tests:8020/"); }

/* Never called: the source reads, and writes only requests to stop. */
#define NEVER(name)                              \
    int name(void) {                             \
        fprintf(stderr, #name " was called\n"); \
        abort();                                 \
    }
NEVER(hdfsGetCapacity)
NEVER(hdfsGetUsed)
NEVER(hdfsChown)
NEVER(hdfsChmod)
NEVER(hdfsRename)
NEVER(hdfsCopy)
NEVER(hdfsMove)
NEVER(hdfsSetReplication)
NEVER(hdfsUtime)
NEVER(hdfsGetHosts)
NEVER(hdfsFreeHosts)
NEVER(hdfsSetWorkingDirectory)
NEVER(hdfsGetDefaultBlockSize)
