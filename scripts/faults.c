/* Preloaded into the processes of scripts/faults: makes calls below a folder fail, and sets the clock.

   Forked processes share `faults`, so that a fault is that of a run, not of one of its processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NONE, WRITE, CREATE, RENAME, FSYNC, MKDIR };

struct {
    atomic_long ahead; /* seconds by which the clock is ahead */
    atomic_int call, error, lasting, left, struck;
    char folder[PATH_MAX];
} *faults;

__attribute__((constructor)) static void share(void) {
    faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (faults == MAP_FAILED) abort();
}

/* Return whether this call is to fail: the n-th of its kind below the folder, or any after it. */
static int fails(int call, int directory, const char *path) {
    char link[64], place[PATH_MAX] = "";
    if (atomic_load(&faults->call) != call) return 0;
    if (path == NULL || path[0] != '/') {
        if (path != NULL && directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        if (readlink(link, place, sizeof place - 1) < 0) return 0;
    } else snprintf(place, sizeof place, "%s", path);
    if (strncmp(place, faults->folder, strlen(faults->folder)) != 0) return 0;
    int left = atomic_fetch_sub(&faults->left, 1);
    if (left > 0 || (left < 0 && !atomic_load(&faults->lasting))) return 0;
    atomic_fetch_add(&faults->struck, 1);
    errno = atomic_load(&faults->error);
    return 1;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *bytes, size_t count) {
    NEXT(write);
    return fails(WRITE, file, NULL) ? -1 : next(file, bytes, count);
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                        \
        va_list more; va_start(more, flags);                            \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;       \
        va_end(more); NEXT(name);                                       \
        if (flags & O_CREAT && fails(CREATE, AT_FDCWD, path)) return -1; \
        return next(path, flags, mode);                                 \
    }
OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails(RENAME, AT_FDCWD, to) ? -1 : next(from, to);
}

int fsync(int file) {
    NEXT(fsync);
    return fails(FSYNC, file, NULL) ? -1 : next(file);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return fails(MKDIR, AT_FDCWD, path) ? -1 : next(path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int failed = next(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += atomic_load(&faults->ahead);
    return failed;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
