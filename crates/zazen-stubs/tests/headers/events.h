/* Publish and subscribe, all in strings and small structs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* START-ZOID-SCANNER ID=0x21 INIT=events_start FINI=NULL PROC=NULL ATTACH=events_attach DETACH=events_detach */
struct zazen_caller;
int events_start(void);
void events_attach(const struct zazen_caller *caller);
void events_detach(const struct zazen_caller *caller, int32_t reason);

typedef struct events_client {
    int32_t number;
    char name[12];
} events_client_t;

enum events_severity { EVENTS_INFO, EVENTS_WARNING, EVENTS_FATAL };

#define EVENTS_NAME_MAX 64

extern int events_connect(const char *space /* in:str */, const char *schema /* in:str:nullok */,
                          events_client_t *client /* out:ptr */, char *error /* out:str:max=64 */);
int events_publish(events_client_t client /* in:obj */, const char *name /* in:str:max=64 */,
                   enum events_severity severity /* in:obj */, const events_client_t *also /* in:ptr:nullok */);
enum events_severity events_worst(void);
bool events_rewrite(char *text /* inout:str:size=+1 */, const uint8_t *room /* in:ptr */,
                    bool loud /* in:obj */, char *note /* out:str:max=16:nullok */,
                    char *both /* inout:str:max=32:nullok */);
events_client_t events_whoami(void);
void events_ping(void) __attribute__((nonnull));
