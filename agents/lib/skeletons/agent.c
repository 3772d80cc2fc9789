/*
 * drover-agent-NAME: counts the lines of a file. An agent of drover(8); drover-agent(7) is its author's manual.
 *
 *     cc -O2 -Wall -o drover-agent-NAME drover-agent-NAME.c
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Put one character of a value, which may be escaped, to *to; return where the next one begins. */
static const char *unescape(const char *from, char *to)
{
    unsigned byte;

    if (*from != '\\') {
        *to = *from;
        return from + 1;
    }
    switch (*++from) {
    case 'n': *to = '\n'; break;
    case 'r': *to = '\r'; break;
    case 't': *to = '\t'; break;
    case 'x':
        if (sscanf(from + 1, "%2x", &byte) == 1) {
            *to = (char)byte;
            return from + 3;
        }
        /* fall through */
    default: *to = *from; break;
    }
    return *from == '\0' ? from : from + 1;
}

/* Put the value of a column of a line `column="value" column="value"` to value, which has room for the line; 0 if none. */
static int column(const char *line, const char *name, char *value)
{
    size_t length = strlen(name);

    while (*line != '\0') {
        int found = strncmp(line, name, length) == 0 && strncmp(line + length, "=\"", 2) == 0;
        char *to = value;

        line = strstr(line, "=\"");
        if (line == NULL)
            return 0;
        for (line += 2; *line != '"' && *line != '\0'; to++)
            line = unescape(line, to);
        *to = '\0';
        if (*line == '\0')
            return 0;
        if (found)
            return 1;
        line += line[1] == ' ' ? 2 : 1;
    }
    return 0;
}

/* Do one item; return why it failed, or NULL; set *final if it is not to be tried again. Replace this by your own work. */
static const char *work(const char *line, char *value, int *final)
{
    /* a row of a query has columns; one parameter is the whole line */
    const char *path = column(line, "path", value) ? value : line;
    unsigned long lines = 0;
    int byte, trouble;
    FILE *file;

    if (*path == '\0') {
        *final = 1;
        return "the item names no file";
    }
    file = fopen(path, "rb");
    if (file == NULL)
        return strerror(errno);
    while ((byte = getc(file)) != EOF)
        lines += byte == '\n';
    trouble = ferror(file) ? errno : 0;
    fclose(file);
    if (trouble)
        return strerror(trouble);
    printf("RESULT {\"lines\":%lu}\n", lines);
    return NULL;
}

int main(void)
{
    char *line = NULL, *value = NULL;
    size_t size = 0;
    ssize_t length;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* flush every line: to a pipe it would be kept back */
    puts("OK");                            /* ready */
    while ((length = getline(&line, &size, stdin)) > 0 && line[length - 1] == '\n') { /* a line that EOF cut is none */
        int final = 0;
        const char *why;
        char *room = realloc(value, size);

        if (room == NULL)
            return 1;
        value = room;
        line[length - 1] = '\0';
        if ((why = work(line, value, &final)) != NULL)
            printf("%s %s\n", final ? "FAIL!" : "FAIL", why); /* one line: no line end may be in it */
        puts("OK");                   /* this item is finished, and here is room for the next */
    }
    return 0; /* end of input: the scheduler wants us to end */
}
