/* Files as POSIX has them: numbers, strings, arrays with a capacity that comes back as a length. */
#ifndef FILES_H
#define FILES_H

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* START-ZOID-SCANNER ID=1 INIT=files_init FINI=files_fini PROC=NULL */

void files_init(int nproc);
void files_fini(void);

/* errno, handle=file */
int files_open(const char *path /* in:str */, int flags /* in:obj */, mode_t mode /* in:obj */);
/* errno */
int files_close(int fd /* in:obj:handle=file:close */);
/* errno blocking */
ssize_t files_read(int fd /* in:obj:handle=file */, void *buf /* out:arr:size=+1:zerocopy */,
                   size_t *count /* inout:ptr */);
ssize_t /* errno */ files_write(int fd /* in:obj:handle=file */, const void *buf /* in:arr:size=+1:zerocopy */,
                                size_t count /* in:obj */);
int files_stat(const char *path /* in:str:max=4096 */, struct stat *about /* out:ptr */) /* errno, idempotent */;
int files_readlink(const char *path /* in:str */, char *target /* out:str:size=+1 */, size_t room /* in:obj */);
int files_accept(int socket /* in:obj:handle=file */, struct sockaddr_storage *address /* out:ptr:nullok */,
                 socklen_t *length /* inout:ptr:nullok */);
int files_getaddr(const char *host /* in:str:nullok */, unsigned char *address /* out:arr:size=+1:nullok */,
                  socklen_t *length /* inout:ptr:nullok */);
off_t files_seek(int fd /* in:obj:handle=file */, off_t offset /* in:obj */, int whence /* in:obj */);
ssize_t files_getdents(int /* fd */ /* in:obj:handle=file */, char * /* names */ /* out:arr:size=+1:max=8192 */,
                       size_t * /* room */ /* inout:ptr */);

#ifdef __cplusplus
}
#endif

#endif
