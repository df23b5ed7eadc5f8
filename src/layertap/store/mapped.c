/* Files that are read through a map, and cut by another program meanwhile: loaded by mapped.py.
 *
 * Reading a page behind the end of a file raises SIGBUS, which ends the process. While a range is guarded, a handler
 * puts zeros in the place of the rest of it and notes that it was cut; whoever reads asks afterwards, and throws away
 * what was made of the zeros. A fault anywhere else goes to the handler that was there before. The handler is
 * installed while there are ranges, and taken off with the last one if it is still ours.
 *
 * Ranges are added and removed under the caller's lock; the handler, in any thread, only reads them and sets `cut`.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

enum { RANGES = 1024 };

typedef struct {
    volatile uintptr_t begin, end; /* end is 0 where the place is free */
    volatile int cut;
} Range;

static Range ranges[RANGES];
static int used;
static struct sigaction before;

static void on_fault(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int k = 0; k < RANGES; k++) {
        uintptr_t end = ranges[k].end, page = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (end == 0 || at < ranges[k].begin || at >= end) continue;
        uintptr_t begin = at - at % page;
        end += (page - end % page) % page;
        void *zeros = mmap((void *)begin, end - begin, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        ranges[k].cut = 1;
        return; /* what was to be read is read again */
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_IGN && before.sa_handler != SIG_DFL) {
        before.sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the fault comes again, and the process ends as it would have without us */
    }
}

/* The number of the guarded range, or -1 where there is no room: then the map is as it would be without us. */
int layertap_guard(uintptr_t begin, uintptr_t size) {
    if (used == RANGES || size == 0) return -1;
    if (used == 0) {
        struct sigaction ours = {0};
        ours.sa_sigaction = on_fault;
        ours.sa_flags = SA_SIGINFO;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGBUS, &ours, &before) != 0) return -1;
    }
    int k = 0;
    while (ranges[k].end != 0) k++;
    ranges[k].cut = 0;
    ranges[k].begin = begin;
    ranges[k].end = begin + size;
    used++;
    return k;
}

int layertap_cut(int k) { return ranges[k].cut; }

void layertap_release(int k) {
    struct sigaction now;
    ranges[k].end = 0;
    used--;
    if (used == 0 && sigaction(SIGBUS, 0, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
        sigaction(SIGBUS, &before, 0);
}
