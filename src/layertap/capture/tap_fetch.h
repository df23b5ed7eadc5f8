/* From a device to the host, in one call that does not hold Python's lock: who asks for the lock again and again while
 * the model's thread has it makes every operation of the model slower. */
static int (*wait_for)(void *, void *, unsigned), (*record)(void *, void *), (*synchronize)(void *);
static int (*copy_to_host)(void *, uint64_t, size_t, void *);

/* The pinned memory of one device, in two halves: one fills while the other is copied out. */
typedef struct { char *memory; size_t half; void *stream, *filled[2]; } Ring;

/* What the driver says. One half is copied out while the other fills. */
static int fetch_all(const Ring *ring, void *ready, uint64_t from, char *to, size_t nbytes) {
    int error = wait_for(ring->stream, ready, 0);
    size_t sent = 0, got = 0; /* whole halves, but for the last one */
    while (!error && got < nbytes) {
        int sends = sent < nbytes && sent - got < 2 * ring->half;
        size_t at = sends ? sent : got, part = nbytes - at < ring->half ? nbytes - at : ring->half;
        int half = (int)(at / ring->half % 2);
        char *memory = ring->memory + (half ? ring->half : 0);
        if (sends) {
            error = copy_to_host(memory, from + at, part, ring->stream);
            error = error ? error : record(ring->filled[half], ring->stream);
            sent += part;
        } else {
            error = synchronize(ring->filled[half]);
            if (!error) memcpy(to + at, memory, part);
            got += part;
        }
    }
    return error;
}

/* fetch(ready, stream, filled, filled, pinned, half, from, to, nbytes): addresses and handles as numbers. */
static PyObject *module_fetch(PyObject *Py_UNUSED(module), PyObject *const *a, Py_ssize_t n) {
    enum { READY, STREAM, FIRST, SECOND, PINNED, HALF, FROM, TO, NBYTES, ARGUMENTS };
    unsigned long long v[ARGUMENTS];
    if (n != ARGUMENTS || !copy_to_host) {
        PyErr_SetString(PyExc_TypeError, "fetch(ready, stream, filled, filled, pinned, half, from, to, nbytes)");
        return NULL;
    }
    for (int i = 0; i < ARGUMENTS; i++) v[i] = PyLong_AsUnsignedLongLong(a[i]);
    if (PyErr_Occurred()) return NULL;
#define AT(i) (void *)(uintptr_t)v[i]
    Ring ring = {AT(PINNED), (size_t)v[HALF], AT(STREAM), {AT(FIRST), AT(SECOND)}};
    PyThreadState *state = PyEval_SaveThread();
    int error = fetch_all(&ring, AT(READY), v[FROM], AT(TO), (size_t)v[NBYTES]);
    PyEval_RestoreThread(state);
    if (error) return PyErr_Format(PyExc_RuntimeError, "the CUDA driver: error %d", error);
    Py_RETURN_NONE;
}

/* Whether the driver has what `fetch` takes. */
static int find_fetch(void *driver) {
    void *found[] = {dlsym(driver, "cuStreamWaitEvent"), dlsym(driver, "cuEventRecord"),
                     dlsym(driver, "cuEventSynchronize"), dlsym(driver, "cuMemcpyDtoHAsync_v2")};
    for (int i = 0; i < 4; i++)
        if (!found[i]) return 0;
    memcpy(&wait_for, &found[0], sizeof wait_for), memcpy(&record, &found[1], sizeof record);
    memcpy(&synchronize, &found[2], sizeof synchronize), memcpy(&copy_to_host, &found[3], sizeof copy_to_host);
    return 1;
}
