/* A faulty disk and a clock that jumps, for one process tree: LD_PRELOAD of benchmarks/faults.py.
 *
 * FAULT_CALLS=write (or read) makes these calls fail with EIO on files below FAULT_UNDER, from the
 * moment on that the file FAULT_WHEN is there. CLOCK_FILE holds seconds that are added to the time
 * of day; while it is missing nothing is added. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int is_set(const char *name, const char *value) {
    const char *found = getenv(name);
    return found && strcmp(found, value) == 0;
}

static int faulty(int fd, const char *calls) {
    const char *under = getenv("FAULT_UNDER"), *when = getenv("FAULT_WHEN");
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (!under || !when || !is_set("FAULT_CALLS", calls)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, under, strlen(under)) == 0 && access(when, F_OK) == 0;
}

#define WRAP(type, name, calls, parameters, arguments)                                             \
    type name parameters {                                                                         \
        static type(*real) parameters;                                                             \
        int before = errno;                                                                        \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                             \
        if (faulty(fd, calls)) {                                                                   \
            errno = EIO;                                                                           \
            return -1;                                                                             \
        }                                                                                          \
        errno = before;                                                                            \
        return real arguments;                                                                     \
    }

WRAP(ssize_t, write, "write", (int fd, const void *from, size_t n), (fd, from, n))
WRAP(ssize_t, pwrite, "write", (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
WRAP(ssize_t, pwrite64, "write", (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at))
WRAP(int, fsync, "write", (int fd), (fd))
WRAP(int, fdatasync, "write", (int fd), (fd))
WRAP(ssize_t, read, "read", (int fd, void *to, size_t n), (fd, to, n))
WRAP(ssize_t, pread, "read", (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
WRAP(ssize_t, pread64, "read", (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))

static long seconds_added(void) {
    const char *file = getenv("CLOCK_FILE");
    char text[32];
    int fd, before = errno;
    ssize_t length;
    if (!file) return 0;
    fd = syscall(SYS_openat, -100, file, 0, 0);
    if (fd < 0) {
        errno = before;
        return 0;
    }
    length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    errno = before;
    text[length > 0 ? length : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += seconds_added();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (result == 0) now->tv_sec += seconds_added();
    return result;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
