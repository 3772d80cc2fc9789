/* A line agent that does nothing: "OK\n" at the start and for every line.
 *
 *     agent [PIPE [LINES]]
 *
 * To the named pipe PIPE go instants (monotonic nanoseconds): when it held its first LINES lines, and when it held one
 * of the first two below. Lines that ask for more than nothing:
 *
 *     stamp        tell PIPE
 *     gate PATH    tell PIPE, then wait until somebody has opened the named pipe PATH for writing
 *     sleep MS     wait so long */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is(const char *line, const char *word) { return !strncmp(line, word, strlen(word)); }

static int stamp(int fd) {
    struct timespec now;
    char text[32];
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(text, sizeof text, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    return write(fd, text, length) == length;
}

static int await_gate(const char *path) {
    int fd = open(path, O_RDONLY);
    return fd >= 0 && !close(fd);
}

static int doze(long ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    return !nanosleep(&span, NULL);
}

static int obey(const char *line, int fd) {
    if (is(line, "stamp")) return stamp(fd);
    if (is(line, "gate ")) return stamp(fd) && await_gate(line + 5);
    return !is(line, "sleep ") || doze(atol(line + 6));
}

static int ok(void) { return write(1, "OK\n", 3) == 3; }

int main(int count, char **words) {
    static char buffer[65536];
    ssize_t got;
    int fd = count > 1 ? open(words[1], O_WRONLY) : -1;
    long stamps = count > 2 ? atol(words[2]) : 0;
    if (!ok()) return 1;
    while ((got = read(0, buffer, sizeof buffer)) > 0) {
        char *line = buffer;
        for (char *end; (end = memchr(line, '\n', buffer + got - line)); line = end + 1) {
            *end = 0;
            if (stamps > 0 && stamps-- && !stamp(fd)) return 1;
            if ((*line == 's' || *line == 'g') && !obey(line, fd)) return 1;
            if (!ok()) return 1;
        }
    }
    return 0;
}
