// Calls everything with arguments that cannot be, and checks that nothing has an effect.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zazen.h"

static int failures;

#define REFUSED(call)                                                                                        \
    do {                                                                                                     \
        int32_t status_ = (call);                                                                            \
        if (status_ != ZAZEN_INVALID_ARGUMENT || zazen_last_error()[0] == 0) {                               \
            printf("%s: %d (%s)\n", #call, status_, zazen_last_error());                                     \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

#define TRUE(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("not so: %s\n", #condition);                                                              \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static int32_t nothing_words(void *context, uint64_t *words, uint64_t count) {
    (void)context, (void)words, (void)count;
    return 7;
}

static int32_t nothing_alltoall(void *context, const uint64_t *send, uint64_t *receive) {
    (void)context, (void)send, (void)receive;
    return 7;
}

static int32_t nothing_alltoallv(void *context, const void *const *send, const uint64_t *send_bytes,
                                 void *const *receive, const uint64_t *receive_bytes) {
    (void)context, (void)send, (void)send_bytes, (void)receive, (void)receive_bytes;
    return 7;
}

static int32_t nothing_broadcast(void *context, void *buffer, uint64_t bytes) {
    (void)context, (void)buffer, (void)bytes;
    return 7;
}

static void sets(void) {
    zazen_run_t runs[2] = {{5, 3, 2}, {100, 1, 1}}, bad = {0, 0, 1}, run;
    zazen_runset_t *set = NULL;
    uint64_t numbers[8];
    REFUSED(zazen_runset_from_runs(NULL, 1, &set));
    REFUSED(zazen_runset_from_runs(runs, 2, NULL));
    REFUSED(zazen_runset_from_runs(&bad, 1, &set));
    TRUE(set == NULL);
    TRUE(zazen_runset_from_runs(runs, 2, &set) == ZAZEN_OK);
    TRUE(zazen_runset_len(set) == 4 && zazen_runset_contains(set, 7) && !zazen_runset_contains(set, 6));
    TRUE(zazen_runset_numbers(set, 1, numbers, 8) == 3 && numbers[0] == 7 && numbers[2] == 100);
    TRUE(zazen_runset_numbers(set, 0, NULL, 8) == 0 && zazen_runset_numbers(set, 9, numbers, 8) == 0);
    zazen_run_t seven = {7, 1, 1};
    zazen_runset_t *other = NULL, *made = NULL;
    TRUE(zazen_runset_from_runs(&seven, 1, &other) == ZAZEN_OK);
    REFUSED(zazen_runset_union(NULL, other, &made));
    REFUSED(zazen_runset_intersection(set, NULL, &made));
    REFUSED(zazen_runset_difference(set, other, NULL));
    TRUE(made == NULL);
    TRUE(zazen_runset_union(set, other, &made) == ZAZEN_OK && zazen_runset_len(made) == 4);
    zazen_runset_free(made);
    TRUE(zazen_runset_intersection(set, other, &made) == ZAZEN_OK && zazen_runset_len(made) == 1);
    zazen_runset_free(made);
    TRUE(zazen_runset_difference(set, other, &made) == ZAZEN_OK && !zazen_runset_contains(made, 7));
    zazen_runset_free(made);
    zazen_runset_free(other);
    zazen_runs_t *iteration = zazen_runset_runs(set);
    zazen_runset_free(set);
    TRUE(zazen_runs_next(iteration, &run) == 1 && run.first == 5 && run.count == 3 && run.step == 2);
    TRUE(zazen_runs_next(iteration, NULL) == 0);
    TRUE(zazen_runs_next(iteration, &run) == 1 && run.first == 100);
    TRUE(zazen_runs_next(iteration, &run) == 0);
    zazen_runs_free(iteration);
    TRUE(zazen_runset_len(NULL) == 0 && !zazen_runset_contains(NULL, 0) && zazen_runset_runs(NULL) == NULL);
    TRUE(zazen_runs_next(NULL, &run) == 0);
    zazen_runs_free(NULL);
    zazen_runset_free(NULL);
}

static void check_file(const char *path, long bytes) {
    FILE *file = fopen(path, "rb");
    TRUE(file != NULL);
    if (file != NULL) {
        TRUE(fseek(file, 0, SEEK_END) == 0 && ftell(file) == bytes);
        fclose(file);
    }
}

static void datasets(const char *path) {
    zazen_dataset_t *dataset = NULL;
    zazen_runset_t *set = NULL, *alien = NULL;
    zazen_frames_t *frames = NULL;
    zazen_frame_t *frame = NULL;
    zazen_range_t range = {0, 0, 1}, backwards = {5, 4, 1};
    zazen_open_options_t wrong_size = {.struct_size = 3};
    zazen_open_options_t not_utf8 = {.struct_size = sizeof not_utf8, .pattern = "\xff\xfe"};
    REFUSED(zazen_open(NULL, NULL, &dataset));
    REFUSED(zazen_open(path, NULL, NULL));
    REFUSED(zazen_open(path, &wrong_size, &dataset));
    REFUSED(zazen_open(path, &not_utf8, &dataset));
    TRUE(dataset == NULL);
    TRUE(zazen_open(path, NULL, &dataset) == ZAZEN_OK);
    TRUE(zazen_has_daemon(dataset) == 1 && strcmp(zazen_path(dataset), path) == 0);
    char layout[64];
    size_t length = 0;
    TRUE(zazen_layout(dataset, layout, sizeof layout, &length) == ZAZEN_OK);
    TRUE(strcmp(layout, "frame-{n:07}.bin") == 0 && length == 16);
    TRUE(zazen_layout(dataset, layout, 16, &length) == ZAZEN_TOO_LARGE && length == 16);
    REFUSED(zazen_layout(NULL, layout, sizeof layout, &length));
    REFUSED(zazen_layout(dataset, NULL, 5, &length));
    REFUSED(zazen_layout(dataset, layout, sizeof layout, NULL));
    TRUE(zazen_next_warning() == NULL);
    REFUSED(zazen_extent(NULL, &set));
    REFUSED(zazen_extent(dataset, NULL));
    REFUSED(zazen_query(dataset, NULL, &set, &alien));
    REFUSED(zazen_query(dataset, &range, NULL, &alien));
    REFUSED(zazen_query(dataset, &range, &set, NULL));
    REFUSED(zazen_query(dataset, &backwards, &set, &alien));
    REFUSED(zazen_assign(NULL, &range, NULL, NULL, NULL, &set));
    REFUSED(zazen_assign(dataset, &range, NULL, NULL, NULL, NULL));
    REFUSED(zazen_assign(dataset, &backwards, NULL, NULL, NULL, &set));
    zazen_assignment_t unsized_assignment = {.struct_size = 0};
    REFUSED(zazen_assign(dataset, &range, NULL, NULL, &unsized_assignment, &set));
    zazen_collectives_t table = {.struct_size = sizeof table, .rank = 0, .size = 0};
    REFUSED(zazen_assign(dataset, &range, NULL, &table, NULL, &set));
    table.size = 2;
    REFUSED(zazen_assign(dataset, &range, NULL, &table, NULL, &set));
    table.allreduce_sum = table.allreduce_or = nothing_words;
    table.alltoall = nothing_alltoall;
    table.alltoallv = nothing_alltoallv;
    table.broadcast = nothing_broadcast;
    TRUE(zazen_assign(dataset, &range, NULL, &table, NULL, &set) == ZAZEN_MPI);
    TRUE(strstr(zazen_last_error(), "returned 7") != NULL);
    TRUE(set == NULL && alien == NULL);

    TRUE(zazen_assign(dataset, &range, NULL, NULL, NULL, &set) == ZAZEN_OK);
    REFUSED(zazen_frames(dataset, NULL, NULL, &frames));
    REFUSED(zazen_frames(dataset, set, NULL, NULL));
    REFUSED(zazen_read(dataset, 0, NULL));
    REFUSED(zazen_read(NULL, 0, &frame));
    TRUE(zazen_read(dataset, 77, &frame) == ZAZEN_NOT_FOUND && frame == NULL);
    uint64_t wanted[3] = {0, 77, 0}, number = 9, far[1] = {UINT64_MAX};
    zazen_frame_t *many[3] = {NULL, NULL, NULL};
    int32_t statuses[3] = {7, 7, 7}, owners[1] = {5};
    REFUSED(zazen_read_many(NULL, wanted, 1, many, NULL));
    REFUSED(zazen_read_many(dataset, NULL, 1, many, NULL));
    REFUSED(zazen_read_many(dataset, wanted, 1, NULL, NULL));
    TRUE(zazen_read_many(dataset, wanted, UINT64_MAX, many, NULL) == ZAZEN_TOO_LARGE);
    TRUE(zazen_read_many(dataset, far, 1, many, NULL) == ZAZEN_TOO_LARGE && many[0] == NULL);
    TRUE(zazen_read_many(dataset, wanted, 3, many, NULL) == ZAZEN_NOT_FOUND && many[0] == NULL);
    TRUE(strstr(zazen_last_error(), "77") != NULL);
    TRUE(zazen_read_many(dataset, NULL, 0, NULL, NULL) == ZAZEN_OK);
    TRUE(zazen_read_many(dataset, wanted, 3, many, statuses) == ZAZEN_OK);
    TRUE(statuses[0] == ZAZEN_OK && statuses[1] == ZAZEN_NOT_FOUND && statuses[2] == ZAZEN_OK);
    TRUE(many[1] == NULL && zazen_frame_bytes(many[0]) == 100 && zazen_frame_number(many[2]) == 0);
    TRUE(memcmp(zazen_frame_data(many[2]), "xxx", 3) == 0);
    zazen_frame_free(many[0]);
    zazen_frame_free(many[2]);
    REFUSED(zazen_number_of(dataset, NULL, &number));
    REFUSED(zazen_number_of(dataset, "frame-0000000.bin", NULL));
    TRUE(zazen_number_of(dataset, "other", &number) == ZAZEN_NOT_FOUND && number == 9);
    TRUE(zazen_number_of(dataset, "frame-0000000.bin", &number) == ZAZEN_OK && number == 0);
    zazen_trajectory_t trajectory = {.struct_size = sizeof trajectory, .atoms = 99}, wrong = {0};
    zazen_blocks_t blocks = {.struct_size = sizeof blocks, .inode = 99};
    uint64_t node[2] = {0, 0}, node_of_rank[1] = {9};
    zazen_runset_t *held[1] = {NULL};
    REFUSED(zazen_trajectory(NULL, &trajectory));
    REFUSED(zazen_trajectory(dataset, NULL));
    TRUE(zazen_trajectory(dataset, &trajectory) == ZAZEN_NOT_FOUND && trajectory.atoms == 99);
    TRUE(zazen_trajectory(dataset, &wrong) == ZAZEN_NOT_FOUND);
    TRUE(zazen_trajectory_file(dataset, 0) == NULL && zazen_trajectory_trouble(dataset, 0) == NULL);
    TRUE(zazen_trajectory_file(NULL, 0) == NULL && zazen_trajectory_trouble(NULL, UINT64_MAX) == NULL);
    REFUSED(zazen_blocks(NULL, &blocks));
    REFUSED(zazen_blocks(dataset, NULL));
    TRUE(zazen_blocks(dataset, &blocks) == ZAZEN_NOT_FOUND && blocks.inode == 99);
    REFUSED(zazen_node(NULL, node));
    REFUSED(zazen_node(dataset, NULL));
    TRUE(zazen_node(dataset, node) == ZAZEN_OK && (node[0] | node[1]) != 0);
    REFUSED(zazen_holders(NULL, NULL, 1, node_of_rank, held));
    REFUSED(zazen_holders(dataset, NULL, 2, node_of_rank, held));
    REFUSED(zazen_holders(dataset, NULL, 1, NULL, held));
    REFUSED(zazen_holders(dataset, NULL, 1, node_of_rank, NULL));
    TRUE(node_of_rank[0] == 9 && held[0] == NULL);
    TRUE(zazen_holders(dataset, NULL, 1, node_of_rank, held) == ZAZEN_OK && node_of_rank[0] == 0);
    TRUE(zazen_runset_len(held[0]) == 1 && zazen_runset_contains(held[0], 0));
    zazen_runset_free(held[0]);
    REFUSED(zazen_owners(NULL, NULL, owners, 1));
    REFUSED(zazen_owners(dataset, NULL, NULL, 1));
    TRUE(zazen_owners(dataset, NULL, owners, 0) == ZAZEN_TOO_LARGE && owners[0] == 5);
    TRUE(zazen_owners(dataset, NULL, owners, 1) == ZAZEN_OK && owners[0] == 0);
    TRUE(zazen_frames(dataset, set, NULL, &frames) == ZAZEN_OK);
    zazen_paths_t *paths = NULL;
    zazen_frame_t *read = (zazen_frame_t *)&read;
    const char *where = NULL;
    REFUSED(zazen_paths(NULL, set, &paths));
    REFUSED(zazen_paths(dataset, NULL, &paths));
    REFUSED(zazen_paths(dataset, set, NULL));
    TRUE(zazen_paths(dataset, set, &paths) == ZAZEN_OK);
    zazen_close(dataset);
    zazen_runset_free(set);
    REFUSED(zazen_paths_next(NULL, &number, &where, &read));
    REFUSED(zazen_paths_next(paths, NULL, &where, &read));
    REFUSED(zazen_paths_next(paths, &number, NULL, &read));
    REFUSED(zazen_paths_next(paths, &number, &where, NULL));
    TRUE(zazen_paths_remaining(paths) == 1 && zazen_paths_remaining(NULL) == 0 && where == NULL);
    number = 5;
    TRUE(zazen_paths_next(paths, &number, &where, &read) == ZAZEN_OK && number == 0 && where[0] == '/');
    check_file(where, 100);
    zazen_frame_free(read);
    TRUE(zazen_paths_next(paths, &number, &where, &read) == ZAZEN_OK && where == NULL && read == NULL);
    TRUE(zazen_paths_remaining(paths) == 0);
    zazen_paths_close(paths);
    zazen_paths_close(NULL);
    REFUSED(zazen_next(NULL, &frame));
    REFUSED(zazen_next(frames, NULL));
    zazen_read_stats_t stats = {.struct_size = sizeof stats}, older = {.struct_size = 2 * sizeof(uint64_t)};
    older.alien = 99;
    REFUSED(zazen_frames_stats(frames, NULL));
    REFUSED(zazen_frames_stats(NULL, &stats));
    TRUE(zazen_frames_remaining(frames) == 1);
    TRUE(zazen_next(frames, &frame) == ZAZEN_OK && frame != NULL);
    TRUE(zazen_frames_stats(frames, &stats) == ZAZEN_OK && stats.bytes == 100);
    TRUE(zazen_frames_stats(frames, &older) == ZAZEN_OK && older.alien == 99);
    zazen_frames_close(frames);
    TRUE(zazen_frame_number(frame) == 0 && zazen_frame_bytes(frame) == 100);
    TRUE(memcmp(zazen_frame_data(frame), "xxx", 3) == 0 && zazen_frame_path(frame)[0] == '/');
    TRUE(zazen_frame_source(frame) == ZAZEN_BACKING || zazen_frame_source(frame) == ZAZEN_ALIEN);
    zazen_frame_free(frame);
    TRUE(zazen_frame_data(NULL) == NULL && zazen_frame_bytes(NULL) == 0 && zazen_path(NULL) == NULL);
    zazen_frame_free(NULL);
    zazen_frames_close(NULL);
    zazen_close(NULL);
}

static void writers(const char *path) {
    zazen_writer_t *writer = NULL;
    zazen_writer_options_t options = {.struct_size = sizeof options};
    zazen_counters_t counters = {.struct_size = 1};
    REFUSED(zazen_writer_open(NULL, &options, &writer));
    REFUSED(zazen_writer_open(path, &options, &writer));
    REFUSED(zazen_writer_open(path, NULL, &writer));
    REFUSED(zazen_writer_open(path, &options, NULL));
    REFUSED(zazen_write(NULL, 0, "x", 1, "name"));
    REFUSED(zazen_writer_counters(NULL, &counters));
    REFUSED(zazen_writer_close(NULL, NULL));
    REFUSED(zazen_writer_drain(NULL));
    TRUE(zazen_writer_problem(NULL, 0) == NULL);
    options.nodes = "127.0.0.1:1";
    options.key = "/nonexistent/key";
    TRUE(zazen_writer_open(path, &options, &writer) == ZAZEN_CONFIG);
    TRUE(writer == NULL);
    options.key = getenv("NONSENSE_KEY");
    if (options.key != NULL) {
        TRUE(zazen_writer_open(path, &options, &writer) == ZAZEN_OK);
        REFUSED(zazen_write(writer, 1, NULL, 5, "name"));
        REFUSED(zazen_write(writer, 1, "x", 1, "../outside"));
        TRUE(zazen_write(writer, UINT64_MAX, "x", 1, "name") == ZAZEN_TOO_LARGE);
        REFUSED(zazen_writer_counters(writer, &counters));
        REFUSED(zazen_writer_close(writer, &counters));
        counters.struct_size = sizeof counters;
        TRUE(zazen_writer_drain(writer) == ZAZEN_OK && zazen_writer_problem(writer, 0) == NULL);
        TRUE(zazen_writer_counters(writer, &counters) == ZAZEN_OK && counters.submitted == 0);
        TRUE(zazen_writer_close(writer, &counters) == ZAZEN_OK && counters.pushed == 0);
    }
    zazen_writer_abandon(NULL);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    TRUE(strcmp(zazen_strerror(ZAZEN_OK), "success") == 0 && zazen_version()[0] != 0);
    sets();
    datasets(argv[1]);
    writers(argv[1]);
    if (failures == 0)
        printf("all refused\n");
    return failures != 0;
}
