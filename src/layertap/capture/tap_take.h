/* From a tensor to a row of the open batch: what `Slot` knows is checked, and the row is filled. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <structmember.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef long long Int;

/* What a row has before its slab (store/columns.py, HEAD). */
typedef struct { int32_t plan, call; int64_t order; int32_t moment, source; int64_t place; } Head;

/* The counts behind a line of the receipt. */
typedef struct { PyObject_HEAD Int fired, tensors, direct, recomputed, dropped; } Counts;

/* The numbers of calls that are taken in a step and phase: all below `end`, or the `others` where some of these are free. */
typedef struct { Int step, end; PyObject *phase, *others; } Taken;

/* The numbers of calls that are taken of one site, now and in the moments before. */
enum { BEFORE = 3 };
typedef struct { PyObject_HEAD Int newest; Taken now, before[BEFORE]; } Numbers;

/* A tensor to be measured, as onepass.c has it. */
typedef struct { uint64_t x; int64_t count, kind; uint64_t table, out; } Task;

/* One role and leaf of one module, for tensors of one shape, dtype and device. */
typedef struct {
    PyObject_HEAD
    PyObject *shape, *dtype, *device, *numbers, *plans, *kernel;
    Int number, nbytes, itemsize, arena_bytes, index;
    Task task;
    char kept, gathers, on_device, large;
} Slot;

/* The compiled kernel that measures a slot's tensors, and how many programs it takes (measure/kernel.py, Ready). */
typedef struct { PyObject_HEAD Int function, threads, shared, tile, lanes, workers, slices; } Kernel;

/* The part of a batch that is on one device, in the order of one stream. Kernels write their results to slabs in a row,
 * from `slab` to `last_slab`, and their parts to `scratch`, in which so many (`waiting`) wait to be added up. */
typedef struct {
    PyObject_HEAD
    Int address, stream, index, begin, end, slab, last_slab, slab_bytes, scratch, scratch_bytes, waiting, together;
    PyObject *segments, *rows;
} Part;

/* The batch that is being filled. */
typedef struct {
    PyObject_HEAD
    PyObject *moment, *part;
    Int address, count, capacity, row_bytes, arena_address, arena_size, used, credit, moment_number;
    double opened;
} Batch;

/* What holds the open batch. */
typedef struct { PyObject_HEAD PyObject *open, *plans; Int taken; double age; Int look; char crowded; } Gathering;

enum { MOMENTS = 8 };

/* Where a recording is, as far as taps ask at every call. */
typedef struct {
    PyObject_HEAD
    PyObject *epoch, *batch, *flags, *gathering;
    Int step, last_step, order, generation;
    double overhead;
    char attached, simple, strict;
    PyObject *moments[2][MOMENTS];
} Recording;

/* The calls of one module. */
typedef struct {
    PyObject_HEAD
    PyObject *recording, *counts, *slot;
    Int step, calls[2], total, forwards;
    char idle, early, plain;
} Tap;

/* What `connect` was given. */
static PyObject *tensor_type, *parameter_type, *moment_type, *tuple_new, *interpreters, *graph_task, *marks, *is_neg,
    *is_contiguous, *contiguous, *data_ptr, *storage_offset, *storage, *storage_bytes, *current_device, *current_stream,
    *modules;
static PyObject *registry_size; /* found when torch.distributed has been imported */
static PyObject *s_shape, *s_dtype, *s_device, *s_training, *s_marked, *s_phase[2];
static void (*measure_one)(const char *, const void *, char *, char *);
static int (*copy_on_device)(uint64_t, uint64_t, size_t, void *);
static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);
static Int generation; /* of this process: a fork makes another */

static void forked(void) { generation++; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(PyObject **place, PyObject *value) { /* steals nothing */
    PyObject *before = *place;
    Py_XINCREF(value);
    *place = value;
    Py_XDECREF(before);
}

#define CALL(...) PyObject_CallFunctionObjArgs(__VA_ARGS__, NULL)
#define METHOD(object, name, ...) PyObject_CallMethod((PyObject *)(object), name, __VA_ARGS__)

/* 1, 0, or -1 with an error: whether a call gives something true; `none` asks whether it gives anything but None. */
static int answer(PyObject *found, int none) {
    if (!found) return -1;
    int yes = none ? found != Py_None : PyObject_IsTrue(found);
    Py_DECREF(found);
    return yes;
}

static Int number_of(PyObject *found) {
    if (!found) return -1;
    Int value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return value;
}

/* Whether a collective of this process has not been waited for. */
static int pending(void) {
    if (!registry_size) {
        PyObject *work = PyDict_GetItemString(modules, "torch._C._distributed_c10d"); /* borrowed */
        if (!work) return 0;                                                         /* it may still be imported */
        registry_size = PyObject_GetAttrString(work, "_get_work_registry_size");
        if (!registry_size) {
            PyErr_Clear();
            put(&registry_size, Py_None);
        }
    }
    return registry_size == Py_None ? 0 : answer(CALL(registry_size), 0);
}

/* Whether the tensor is what the slot was made for: 1, 0, or -1 with an error. */
static int fits(const Slot *s, PyObject *x) {
    PyObject *found = PyObject_GetAttr(x, s_dtype);
    if (!found) return -1;
    int same = found == s->dtype;
    Py_DECREF(found);
    if (!same) return 0;
    if (!(found = PyObject_GetAttr(x, s_shape))) return -1;
    same = PyObject_RichCompareBool(found, s->shape, Py_EQ);
    Py_DECREF(found);
    if (same <= 0) return same;
    if (!(found = PyObject_GetAttr(x, s_device))) return -1;
    same = PyObject_RichCompareBool(found, s->device, Py_EQ);
    Py_DECREF(found);
    return same;
}

enum { NOT_CONTIGUOUS = -2 };

/* Where a contiguous tensor begins; 0 where it is not to be taken this way, -1 with an error. */
static Int address_of(const Slot *s, PyObject *x) {
    int no = answer(CALL(interpreters), 1);
    if (!no) no = pending();
    if (!no) no = answer(CALL(is_neg, x), 0);
    if (!no && PyLong_AsLong(PyList_GetItem(marks, 0)) > 0) no = PyObject_HasAttr(x, s_marked);
    if (no) return no < 0 ? -1 : 0;
    int dense = answer(CALL(is_contiguous, x), 0);
    if (dense <= 0) return dense ? -1 : NOT_CONTIGUOUS;
    Int begin = number_of(CALL(data_ptr, x)), from = begin < 0 ? 0 : number_of(CALL(storage_offset, x));
    PyObject *whole = PyErr_Occurred() ? NULL : CALL(storage, x);
    Int room = whole ? number_of(CALL(storage_bytes, whole)) : -1;
    Py_XDECREF(whole);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1; /* NotImplementedError is one too */
        PyErr_Clear(); /* a tensor without memory: Python says why */
        return 0;
    }
    return from * s->itemsize + s->nbytes <= room ? begin : 0;
}

/* Goes on to another step or phase; what arrives of an older one is numbered on from where it was. */
static int turn(Numbers *n, Int step, PyObject *phase) {
    Taken next = {step, 0, phase, NULL};
    int older = step <= n->newest;
    for (int i = 0; older && i < BEFORE; i++) {
        Taken *t = &n->before[i];
        int same = t->phase && t->step == step ? PyObject_RichCompareBool(t->phase, phase, Py_EQ) : 0;
        if (same < 0) return -1;
        if (same) next.end = t->end, next.others = t->others;
    }
    Py_INCREF(phase), Py_XINCREF(next.others);
    Taken last = n->before[BEFORE - 1];
    memmove(n->before + 1, n->before, sizeof *n->before * (BEFORE - 1));
    n->before[0] = n->now, n->now = next;
    n->newest = older ? n->newest : step;
    Py_XDECREF(last.phase), Py_XDECREF(last.others);
    return 0;
}

/* The number itself if it is free in this step and phase, else one after all that are taken; -1 with an error. */
static Int take_number(Numbers *n, Int step, PyObject *phase, Int call) {
    if (!n->now.phase || step != n->now.step || (phase != n->now.phase && PyObject_RichCompareBool(phase, n->now.phase, Py_NE)))
        if (turn(n, step, phase)) return -1;
    Taken *t = &n->now;
    if (call == t->end && !t->others) return t->end++;
    if (!t->others) {
        if (!(t->others = PySet_New(NULL))) return -1;
        for (Int i = 0; i < t->end; i++) {
            PyObject *number = PyLong_FromLongLong(i);
            int failed = !number || PySet_Add(t->others, number);
            Py_XDECREF(number);
            if (failed) return -1;
        }
    }
    PyObject *number = PyLong_FromLongLong(call);
    int there = number ? PySet_Contains(t->others, number) : -1;
    if (there > 0) {
        call = t->end;
        Py_DECREF(number);
        number = PyLong_FromLongLong(call);
    }
    int failed = there < 0 || !number || PySet_Add(t->others, number);
    Py_XDECREF(number);
    t->end = call >= t->end ? call + 1 : t->end;
    return failed ? -1 : call;
}

static Int number_call(PyObject *numbers, PyObject *moment) {
    Int call = PyLong_AsLongLong(PyTuple_GetItem(moment, 0)), step = PyLong_AsLongLong(PyTuple_GetItem(moment, 1));
    return PyErr_Occurred() ? -1 : take_number((Numbers *)numbers, step, PyTuple_GetItem(moment, 4), call);
}

/* The number of a moment in the batch, or -1 with an error. */
static Int moment_number(Batch *b, PyObject *moment) {
    if (b->moment == moment) return b->moment_number;
    if (b->moment && b->moment != Py_None) {
        int same = 1;
        for (Py_ssize_t i = 1; i < 5 && same == 1; i++) /* step, epoch, batch, phase */
            same = PyObject_RichCompareBool(PyTuple_GetItem(b->moment, i), PyTuple_GetItem(moment, i), Py_EQ);
        if (same < 0) return -1;
        if (same) {
            put(&b->moment, moment);
            return b->moment_number;
        }
    }
    return number_of(METHOD(b, "number_moment", "(O)", moment));
}

/* The part of the batch that is on the current stream; NULL with an error. */
static Part *part_of(Batch *b, Int index) {
    PyObject *number = PyLong_FromLongLong(index);
    Int stream = number ? number_of(CALL(current_stream, number)) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) return NULL;
    Part *p = (Part *)b->part;
    if (b->part != Py_None && p->index == index && p->stream == stream) return p;
    PyObject *found = METHOD(b, "use_part", "LL", index, stream);
    if (!found) return NULL;
    Py_DECREF(found); /* the batch has it */
    return (Part *)b->part;
}

static void close_segment(Part *p) {
    if (p->end <= p->begin) return;
    PyObject *segment = Py_BuildValue("[LL]", p->begin, p->end);
    if (!segment || PyList_Append(p->segments, segment)) PyErr_WriteUnraisable((PyObject *)p);
    Py_XDECREF(segment);
    p->begin = p->end;
}

/* Enqueues the kernel that measures a tensor into the part's next slab; what the driver says. */
static int measure_on_device(Part *p, const Kernel *k, Int address, Int count) {
    enum { ARGUMENTS = 5, SPARE = 3 }; /* SPARE: pointers to scratch memory that triton may have given it: ours need none */
    Int full = count / k->tile, pieces = full + (count - full * k->tile + k->lanes - 1) / k->lanes;
    Int values[ARGUMENTS + SPARE] = {address, p->slab, p->scratch + p->waiting * p->scratch_bytes, count, full};
    void *places[ARGUMENTS + SPARE];
    for (int i = 0; i < ARGUMENTS + SPARE; i++) places[i] = &values[i];
    pieces = pieces < k->workers ? pieces : k->workers;
    unsigned programs = (unsigned)((pieces ? pieces : 1) * k->slices);
    int error = launch_kernel((void *)(intptr_t)k->function, programs, 1, 1, (unsigned)k->threads, 1, 1,
                              (unsigned)k->shared, (void *)(intptr_t)p->stream, places, NULL);
    if (!error) p->slab += p->slab_bytes, p->waiting++;
    return error;
}

enum { TAKEN = 1, NOT_HERE = 0, FAILED = -1, OTHERWISE = 2 };

/* Whether the open batch has room for a tensor of the slot. */
static int has_room(const Gathering *g, const Slot *s) {
    const Batch *b = (Batch *)g->open;
    return g->open != Py_None && s->plans == g->plans && b->count < b->capacity &&
           b->used + s->arena_bytes <= b->arena_size && (!s->kept || b->credit >= s->nbytes);
}

/* Writes a row and enqueues or does its work: nothing of Python runs. Returns the driver's error. */
static int write_row(Recording *r, Batch *b, const Slot *s, const Kernel *k, Part *part, const Head *like, Int address) {
    Int source = s->gathers ? b->used : -1;
    char *at = (char *)(intptr_t)(b->address + b->count * b->row_bytes);
    int error = 0;
    if (k) {
        PyObject *row = PyLong_FromLongLong(b->count);
        error = !row || PyList_Append(part->rows, row) ? -1 : measure_on_device(part, k, address, s->task.count);
        Py_XDECREF(row);
    } else if (!s->gathers) {
        measure_one((const char *)(intptr_t)address, &s->task, NULL, at + sizeof(Head));
    } else if (s->on_device) {
        error = copy_on_device((uint64_t)(part->address + source), (uint64_t)address, (size_t)s->nbytes,
                               (void *)(intptr_t)part->stream);
        if (part->end != source) close_segment(part), part->begin = source;
        part->end = source + s->arena_bytes;
    } else {
        memcpy((char *)(intptr_t)(b->arena_address + source), (const char *)(intptr_t)address, (size_t)s->nbytes);
    }
    if (error) return error;
    Head head = *like;
    head.order = r->order++, head.source = (int32_t)source, head.place = s->kept ? source : -1;
    memcpy(at, &head, sizeof head);
    b->used += s->arena_bytes;
    if (s->kept) b->credit -= s->nbytes;
    b->count++;
    return 0;
}

/* Fills a row. OTHERWISE: as the slot says, but by Python. */
static int fill(Recording *r, Slot *s, Int address, PyObject *moment, Counts *counts) {
    Gathering *g = (Gathering *)r->gathering;
    Int step = PyLong_AsLongLong(PyTuple_GetItem(moment, 1));
    if (r->strict && answer(METHOD(r, "raise_failure", NULL), 0) < 0) return FAILED;
    if (step > r->last_step && answer(METHOD(r, "begin_step", "L", step), 0) < 0) return FAILED;
    Kernel *kernel = s->large && s->kernel && s->kernel != Py_None && address % 16 == 0 ? (Kernel *)s->kernel : NULL;
    if ((s->large && !kernel) || (s->on_device && !copy_on_device)) return OTHERWISE;
    if (s->on_device && number_of(CALL(current_device)) != s->index) return PyErr_Occurred() ? FAILED : OTHERWISE;
    Int call = number_call(s->numbers, moment);
    if (call < 0) return FAILED;
    Py_INCREF(s);
    for (int turn = 0;; turn++) {
        Batch *b = has_room(g, s) ? (Batch *)g->open : NULL;
        if (b) {
            Py_INCREF(b);
            Int number = moment_number(b, moment);
            Part *part = number >= 0 && s->on_device ? part_of(b, s->index) : NULL;
            if (number < 0 || (s->on_device && !part)) {
                Py_DECREF(b), Py_DECREF(s);
                return FAILED;
            }
            /* Python may have run, and another thread with it. From here to the row's end it does not. */
            int there = has_room(g, s) && g->open == (PyObject *)b;
            if (there && (!kernel || (part->slab < part->last_slab && part->waiting < part->together))) {
                Head head = {(int32_t)s->number, (int32_t)call, 0, (int32_t)number, 0, 0};
                int error = write_row(r, b, s, kernel, part, &head, address);
                g->taken += !error, counts->tensors += !error;
                int due = b->count == b->capacity ||
                          (b->count % g->look == 0 && !g->crowded && now() - b->opened >= g->age);
                Py_DECREF(b), Py_DECREF(s);
                if (error && !PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "the CUDA driver: error %d", error);
                return error || (due && answer(METHOD(g, "hand_over", NULL), 0) < 0) ? FAILED : TAKEN;
            }
            Py_DECREF(b);
        }
        PyObject *slot = turn < 1000 ? METHOD(g, "make_room", "OO", s, counts) : NULL;
        Py_DECREF(s);
        if (!slot || slot == Py_None) { /* None: the record is left out, and counted */
            if (!slot && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "no room for a record");
            Py_XDECREF(slot);
            return slot ? TAKEN : FAILED;
        }
        s = (Slot *)slot;
    }
}

/* Takes a tensor, if it is one of those that the slot is for. */
static int take(Recording *r, Slot *s, PyObject *x, PyObject *moment, Counts *counts) {
    PyObject *kind = (PyObject *)Py_TYPE(x);
    if (kind != tensor_type && kind != parameter_type) return NOT_HERE;
    int same = fits(s, x);
    if (same <= 0) return same;
    Int address = address_of(s, x);
    PyObject *copy = NULL;
    if (address == NOT_CONTIGUOUS) {
        if (!(copy = CALL(contiguous, x))) return FAILED;
        x = copy;
        address = address_of(s, x);
    }
    int done = address > 0 ? fill(r, s, address, moment, counts) : address < 0 ? FAILED : NOT_HERE;
    if (done == OTHERWISE) {
        PyObject *found = METHOD(r->gathering, "take_large", "OOOOO", r, s, x, moment, counts);
        done = found ? TAKEN : FAILED;
        Py_XDECREF(found);
    }
    Py_XDECREF(copy);
    return done;
}
