/* A small service that knows its clients: what test_plugin.py drives. */
#ifndef SERVICE_H
#define SERVICE_H

#include <stdint.h>

struct zazen_host;
struct zazen_caller;

/* START-ZAZEN-SCANNER ID=77 INIT=service_init FINI=service_fini ATTACH=service_attach DETACH=service_detach */

int service_init(const struct zazen_host *host);
void service_fini(void);
void service_attach(const struct zazen_caller *caller);
void service_detach(const struct zazen_caller *caller, int32_t reason);

/* handle=item */
int service_open(int value /* in:obj */);
int service_value(int item /* in:obj:handle=item */);
int service_close(int item /* in:obj:handle=item:close */);

uint64_t service_who(uint32_t *pid /* out:ptr */, uint32_t *uid /* out:ptr */);

/* What a plug-in can get wrong: `lie` says which. */
int service_text(int lie /* in:obj */, char *text /* out:str:max=8 */);
int service_array(int lie /* in:obj */, uint32_t *values /* out:arr:size=+1 */, int *count /* inout:ptr */);
int service_stream(int lie /* in:obj */, void *bytes /* out:arr:size=+1:zerocopy:userbuf */,
                   uint64_t *count /* inout:ptr */);
int service_lines(int lie /* in:obj */, void **lines /* out:arr2d:size=+1 */,
                  uint64_t *lengths /* inout:arr:size=+1 */,
                  int count /* in:obj */);
int service_take(int lie /* in:obj */, const void *bytes /* in:arr:size=+1:zerocopy:userbuf */,
                 uint64_t count /* in:obj */, int item /* in:obj:handle=item */);

#endif
