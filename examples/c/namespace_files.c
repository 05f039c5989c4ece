/* Files of the namespace without a mount: makes many, writes one, reads it, says where it is.
 *
 *   namespace_files DIRECTORY [COUNT]
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zazen.h>

static void check(int32_t status, const char *what) {
    if (status != ZAZEN_OK) {
        fprintf(stderr, "%s: %s (errno %d)\n", what, zazen_last_error(), zazen_last_errno());
        exit(1);
    }
}

static int count_entry(void *user, const char *name, const zazen_stat_t *stat) {
    size_t *count = user;
    (void)name;
    (void)stat;
    ++*count;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIRECTORY [COUNT]\n", argv[0]);
        return 2;
    }
    size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000;
    zazen_namespace_t *space;
    check(zazen_namespace_open(NULL, &space), "connect");
    check(zazen_namespace_mkdir(space, argv[1], 0755), "make the directory");

    char *texts = malloc(count * 32 + 1);
    const char **names = malloc(count * sizeof *names + 1);
    if (texts == NULL || names == NULL) {
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        snprintf(texts + i * 32, 32, "part-%zu", i);
        names[i] = texts + i * 32;
    }
    check(zazen_namespace_create_many(space, argv[1], names, count, 0644, NULL), "make many files");
    if (zazen_namespace_mkdir(space, argv[1], 0755) == ZAZEN_OK || zazen_last_errno() != EEXIST) {
        fprintf(stderr, "a directory was made twice\n");
        return 1;
    }

    char path[4096];
    snprintf(path, sizeof path, "%s/written", argv[1]);
    const char text[] = "hello from C";
    char got[sizeof text] = "";
    size_t bytes = 0;
    zazen_file_t *file;
    check(zazen_file_open(space, path, O_RDWR | O_CREAT | O_EXCL, 0644, &file), "open");
    check(zazen_file_write(file, text, sizeof text, 0), "write");
    check(zazen_file_read(file, got, sizeof got, 0, &bytes), "read");
    check(zazen_file_sync(file), "sync");
    check(zazen_file_close(file), "close");
    if (bytes != sizeof text || memcmp(text, got, sizeof text) != 0) {
        fprintf(stderr, "read something else than was written\n");
        return 1;
    }

    zazen_stat_t stat = {.struct_size = sizeof stat};
    check(zazen_namespace_stat(space, path, 1, &stat), "stat");
    int64_t node;
    char host[256];
    check(zazen_namespace_locate(space, path, &node, host, sizeof host), "locate");
    size_t listed = 0;
    check(zazen_namespace_list(space, argv[1], count_entry, &listed), "list");
    printf("entries %zu bytes %llu node %lld\n", listed, (unsigned long long)stat.bytes, (long long)node);
    zazen_namespace_close(space);
    free(texts);
    free(names);
    return 0;
}
