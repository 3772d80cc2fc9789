/* A line agent that does nothing: "OK\n" at the start and for every line.
 *
 *     agent [PIPE LINES]
 *
 * The instants (monotonic nanoseconds) at which it held its first LINES lines go to the named pipe PIPE. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int stamp(int fd) {
    struct timespec now;
    char text[32];
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(text, sizeof text, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    return write(fd, text, length) == length;
}

static int ok(void) { return write(1, "OK\n", 3) == 3; }

int main(int count, char **words) {
    char buffer[65536];
    ssize_t got;
    int fd = count > 2 ? open(words[1], O_WRONLY) : -1;
    long stamps = fd < 0 ? 0 : atol(words[2]);
    if (!ok()) return 1;
    while ((got = read(0, buffer, sizeof buffer)) > 0)
        for (ssize_t i = 0; i < got; i++) {
            if (buffer[i] != '\n') continue;
            if (stamps > 0 && stamps-- && !stamp(fd)) return 1;
            if (!ok()) return 1;
        }
    return 0;
}
