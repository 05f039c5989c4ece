// Writes frames to a dataset's directory, as a simulation does, and pushes each to the nodes'
// caches meanwhile.
//
//   push_frames DATASET NODES COUNT BYTES      with the daemons' key file in ZAZEN_KEY

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zazen.h"

static int stop(const char *what, int32_t status) {
    fprintf(stderr, "%s: %s: %s\n", what, zazen_strerror(status), zazen_last_error());
    return 1;
}

static int store(const char *dataset, const char *name, const unsigned char *bytes, size_t count) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", dataset, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return 0;
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return 0;
    size_t written = fwrite(bytes, 1, count, file);
    return fclose(file) == 0 && written == count;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s DATASET NODES COUNT BYTES\n", argv[0]);
        return 2;
    }
    uint64_t count = strtoull(argv[3], NULL, 10);
    size_t size = (size_t)strtoull(argv[4], NULL, 10);
    unsigned char *bytes = malloc(size ? size : 1);
    if (bytes == NULL)
        return 1;

    zazen_writer_options_t options = {.struct_size = sizeof options, .nodes = argv[2], .block = 1};
    zazen_writer_t *writer;
    int32_t status = zazen_writer_open(argv[1], &options, &writer);
    if (status != ZAZEN_OK)
        return stop("zazen_writer_open", status);
    for (uint64_t number = 0; number < count; number++) {
        char name[64];
        snprintf(name, sizeof name, "frame-%07" PRIu64 ".bin", number);
        memset(bytes, (int)(number & 0xff), size);
        if (!store(argv[1], name, bytes, size)) {
            fprintf(stderr, "cannot write %s/%s\n", argv[1], name);
            return 1;
        }
        status = zazen_write(writer, number, bytes, size, name);
        if (status != ZAZEN_OK)
            return stop("zazen_write", status);
    }
    zazen_counters_t counters = {.struct_size = sizeof counters};
    status = zazen_writer_close(writer, &counters);
    free(bytes);
    if (status != ZAZEN_OK)
        return stop("zazen_writer_close", status);
    printf("submitted %" PRIu64 " pushed %" PRIu64 " already %" PRIu64 " skipped %" PRIu64 " refused %" PRIu64
           "\n",
           counters.submitted, counters.pushed, counters.already_there,
           counters.skipped_slow + counters.skipped_no_node, counters.refused);
    return 0;
}
