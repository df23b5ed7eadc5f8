/* A driver without a device. A copy on the device is made at once, as if nothing were before it in its stream; one to the
 * host when its event is waited for, and not before: who reads the pinned memory earlier finds what was there. */
#include <stdint.h>
#include <string.h>

typedef struct { char *to; const char *from; size_t nbytes; void *event; } Copy;

long on_device, to_host, waited, overwritten;
static Copy queue[4096];
static int first, end;

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t nbytes, void *stream) {
    (void)stream;
    memcpy((void *)to, (void *)from, nbytes);
    on_device++;
    return 0;
}
int cuLaunchKernel(void) { return 1; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)stream, (void)flags;
    return event ? 0 : 400;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t nbytes, void *stream) {
    (void)stream;
    for (int i = first; i < end; i++) overwritten += queue[i].to == to;
    queue[end++] = (Copy){to, (const char *)from, nbytes, NULL};
    to_host++;
    return 0;
}
int cuEventRecord(void *event, void *stream) {
    (void)stream;
    queue[end - 1].event = event;
    return 0;
}
int cuEventSynchronize(void *event) {
    waited++;
    for (int done = 0; first < end && !done; first++) {
        memcpy(queue[first].to, queue[first].from, queue[first].nbytes);
        done = queue[first].event == event;
    }
    if (first == end) first = end = 0;
    return 0;
}
