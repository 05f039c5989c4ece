/* Only so that the client's program needs no second header. */
#include "service.h"
#include "zazen_loopback.h"

int32_t service_bind(struct zazen_stub_connection *connection);
