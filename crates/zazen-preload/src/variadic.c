/* variadic.c: hooks with arguments that only C can take. Each is exported under libc's name by a
 * jump in raw_calls.rs: a Rust library can't export what C defines. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int zazen_preload_write_all(int fd, const char *data, size_t count);
int zazen_preload_is_far(int fd);
int zazen_preload_execve(const char *path, char *const *arguments, char *const *environment);
int zazen_preload_execvpe(const char *file, char *const *arguments, char *const *environment);

int zazen_preload_vdprintf(int fd, const char *format, va_list arguments);
int zazen_preload_dprintf(int fd, const char *format, ...);
int zazen_preload_vdprintf_chk(int fd, int flag, const char *format, va_list arguments);
int zazen_preload_dprintf_chk(int fd, int flag, const char *format, ...);
int zazen_preload_execl(const char *path, const char *argument, ...);
int zazen_preload_execlp(const char *path, const char *argument, ...);
int zazen_preload_execle(const char *path, const char *argument, ...);

extern char **environ;

int zazen_preload_vdprintf(int fd, const char *format, va_list arguments)
{
    char *text = NULL;
    int count = vasprintf(&text, format, arguments);
    if (count >= 0)
        count = zazen_preload_write_all(fd, text, (size_t)count);
    free(text);
    return count;
}

int zazen_preload_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    int count;
    va_start(arguments, format);
    count = zazen_preload_vdprintf(fd, format, arguments);
    va_end(arguments);
    return count;
}

/* What gcc makes of the two with _FORTIFY_SOURCE; the flag only checks the format. */
int zazen_preload_vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return zazen_preload_vdprintf(fd, format, arguments);
}

int zazen_preload_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    int count;
    (void)flag;
    va_start(arguments, format);
    count = zazen_preload_vdprintf(fd, format, arguments);
    va_end(arguments);
    return count;
}

/* The arguments up to NULL as an array on the stack of the caller's frame; `more` stands behind
 * the NULL. */
#define ARRAY(first, list)                                                                                   \
    size_t count = 1;                                                                                        \
    va_start(list, first);                                                                                   \
    while (va_arg(list, const char *) != NULL)                                                               \
        count++;                                                                                             \
    va_end(list);                                                                                            \
    char *array[count + 1];                                                                                  \
    array[0] = (char *)first;                                                                                \
    va_start(list, first);                                                                                   \
    for (size_t i = 1; i <= count; i++)                                                                      \
        array[i] = va_arg(list, char *);

int zazen_preload_execl(const char *path, const char *argument, ...)
{
    va_list list;
    ARRAY(argument, list)
    va_end(list);
    return zazen_preload_execve(path, array, environ);
}

int zazen_preload_execlp(const char *path, const char *argument, ...)
{
    va_list list;
    ARRAY(argument, list)
    va_end(list);
    return zazen_preload_execvpe(path, array, environ);
}

int zazen_preload_execle(const char *path, const char *argument, ...)
{
    char **environment;
    va_list list;
    ARRAY(argument, list)
    environment = va_arg(list, char **);
    va_end(list);
    return zazen_preload_execve(path, array, environment);
}
