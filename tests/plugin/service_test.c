/* Drives the service through its stubs: handles per client, callbacks, and a plug-in that breaks
 * its promises. */
#define _GNU_SOURCE
#include "service_client.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int *happened;

static void handles(struct zazen_stub_connection *first, struct zazen_stub_connection *second) {
    int item;
    service_bind(first);
    item = service_open(41);
    assert(item > 0 && item != 41 && service_value(item) == 41);
    assert(service_open(-7) == -7 && zazen_stub_error() == 0 && "a failure is no handle");
    service_bind(second);
    assert(service_value(item) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_HANDLE && "another client's");
    service_bind(first);
    assert(service_value(item + 1) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_HANDLE);
    assert(service_close(item) == 41 && zazen_loopback_handle_count(first) == 0);
    assert(service_close(item) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_HANDLE);
}

static void who(struct zazen_stub_connection *first, struct zazen_stub_connection *second) {
    uint32_t pid, uid;
    uint64_t client;
    service_bind(first);
    client = service_who(&pid, &uid);
    assert(client != 0 && pid == (uint32_t)getpid() && uid == (uint32_t)geteuid());
    service_bind(second);
    assert(service_who(&pid, &uid) != client);
    assert(service_who(NULL, &uid) == 0 && zazen_stub_error() == ZAZEN_CALL_NULL_POINTER);
}

static void lies(void) {
    char text[8] = "before", data[64];
    uint32_t values[4] = {9, 9, 9, 9};
    uint64_t count = 64, lengths[2] = {10, 3};
    void *lines[2] = {data, data + 32};
    int number = 4, item = service_open(1);

    assert(service_text(0, text) == 0 && strcmp(text, "xxxxxxx") == 0);
    assert(service_text(1, text) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY);

    assert(service_array(0, values, &number) == 0 && number == 1 && values[0] == 5 && values[1] == 9);
    for (int lie = 1; lie <= 2; lie++) {
        number = 4;
        assert(service_array(lie, values, &number) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY);
        assert(number == 4 && "a call that fails changes nothing");
    }
    number = -1;
    assert(service_array(0, values, &number) == -1 && zazen_stub_error() == ZAZEN_CALL_TOO_LARGE);
    number = 3;
    assert(service_array(0, NULL, &number) == -1 && zazen_stub_error() == ZAZEN_CALL_NULL_POINTER);

    memset(data, 0, sizeof data);
    assert(service_stream(0, data, &count) == 0 && count == 4 && memcmp(data, "ssss\0", 5) == 0);
    assert(happened[5] == 1 && happened[6] == ZAZEN_CALL_OK);
    count = 8;
    assert(service_stream(1, data, &count) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY &&
           happened[5] == 1);
    assert(service_stream(2, data, &count) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY);
    assert(happened[5] == 2 && happened[6] == ZAZEN_CALL_BAD_REPLY && "completed though the call failed");

    assert(service_lines(0, lines, lengths, 2) == 0 && lengths[0] == 5 && lengths[1] == 1 && data[32] == 'l');
    assert(lines[0] == data && "the caller's table is the caller's");
    assert(service_lines(1, lines, lengths, 2) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY);

    assert(service_take(0, "\1\2\3", 3, item) == 7);
    assert(service_take(0, data, 13, item) == -1 && zazen_stub_error() == ZAZEN_CALL_NO_MEMORY &&
           happened[7] == 0);
    assert(service_take(0, "\1\2\3", 3, item + 1) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_HANDLE);
    assert(happened[7] == ZAZEN_CALL_BAD_HANDLE && "the buffer was given back");
    assert(zazen_call_errno(ZAZEN_CALL_NO_MEMORY) == ENOMEM &&
           zazen_call_errno(ZAZEN_CALL_TOO_LARGE) == E2BIG);
}

/* A daemon that lies: the reply as a whole is right, but one line is longer than the caller's
 * room. */
static void swap_lengths(void *message, uint64_t *bytes, void *armed) {
    unsigned char *lengths = (unsigned char *)message + 40, first[8];
    if (!*(int *)armed)
        return;
    assert(*bytes == 40 + 16 + 16 && lengths[0] == 5 && lengths[8] == 1);
    memcpy(first, lengths, 8);
    memcpy(lengths, lengths + 8, 8);
    memcpy(lengths + 8, first, 8);
}

static int lying;

static void a_lying_daemon(void) {
    char first[10] = "0", second[3] = "1";
    void *lines[2] = {first, second};
    uint64_t lengths[2] = {10, 3};
    lying = 1;
    assert(service_lines(0, lines, lengths, 2) == -1 && zazen_stub_error() == ZAZEN_CALL_BAD_REPLY);
    lying = 0;
    assert(first[0] == '0' && second[0] == '1' && lengths[0] == 10 && lengths[1] == 3);
}

/* Handles are entered, used and removed by several threads on one connection. */
static void *hammer(void *argument) {
    for (int i = 0; i < 2000; i++) {
        int value = (int)(intptr_t)argument * 10000 + i, item = service_open(value);
        assert(service_value(item) == value && service_close(item) == value && zazen_stub_error() == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct zazen_loopback_options options = {.struct_size = sizeof options, .process_count = 3};
    const char *why = "";
    struct zazen_loopback *loopback;
    struct zazen_stub_connection *first, *second;
    pthread_t threads[4];
    void *object;
    uint32_t id;

    assert(argc == 2);
    assert(service_who(&id, &id) == 0 && zazen_stub_error() == ZAZEN_CALL_NO_SERVICE && "no connection yet");
    assert(zazen_loopback_load("./nowhere.so", NULL, &why) == NULL && why[0] != 0);
    object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    assert(object != NULL);
    happened = dlsym(object, "service_log");
    options.flags = ZAZEN_LOOPBACK_BOUNCE | ZAZEN_LOOPBACK_SHARED;
    options.tamper = swap_lengths;
    options.tamper_argument = &lying;
    loopback = zazen_loopback_load(argv[1], &options, &why);
    if (loopback == NULL)
        fprintf(stderr, "%s\n", why);
    assert(loopback != NULL && happened[0] == 3);
    first = zazen_loopback_connect(loopback);
    second = zazen_loopback_connect(loopback);
    assert(happened[2] == 2);
    if (service_bind(first) == ZAZEN_CALL_SCHEMA) {
        puts("schema refused");
        assert(service_value(1) == -1 && zazen_stub_error() == ZAZEN_CALL_SCHEMA);
        return 3;
    }
    handles(first, second);
    who(first, second);
    lies();
    a_lying_daemon();
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, hammer, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    zazen_loopback_disconnect(first, ZAZEN_DETACH_CLOSED);
    zazen_loopback_disconnect(second, ZAZEN_DETACH_DIED);
    assert(happened[3] == 2 && happened[4] == ZAZEN_DETACH_DIED && happened[1] == 0);
    zazen_loopback_stop(loopback);
    assert(happened[1] == 1);
    puts("service: all as expected");
    return 0;
}
