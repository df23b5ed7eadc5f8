/* The short way of a tensor from a module's call into a row of the open batch, without a function of Python.
 *
 * What was found out at a module's first calls (slots.py) is only checked here. Whatever is not as it was then is left to
 * Python, which knows all cases: `take` returns False, `enter` and `leave` call `begin_call` and `end_call`. Python's lock
 * is held throughout. Between the last look at the open batch and the count of its rows nothing of Python runs, so no
 * other thread can fill the same row or close the batch meanwhile.
 *
 * Compiled against the limited API of Python 3.10, so that one library serves all later versions.
 */
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

/* The numbers of calls that are taken of one site (slots.py has the rare cases). */
typedef struct { PyObject_HEAD Int step, end; PyObject *phase, *others; } Numbers;

/* One role and leaf of one module, for tensors of one shape, dtype and device. */
typedef struct {
    PyObject_HEAD
    PyObject *shape, *dtype, *device, *numbers, *plans;
    Int number, nbytes, itemsize, arena_bytes, index, task_address;
    char kept, gathers, on_device, large;
} Slot;

/* The part of a batch that is on one device, in the order of one stream. */
typedef struct { PyObject_HEAD Int address, stream, index; PyObject *segments; Int begin, end; } Part;

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
static const struct { const char *name; PyObject **place; } CONNECTED[] = {
    {"tensor_type", &tensor_type},
    {"parameter_type", &parameter_type},
    {"moment_type", &moment_type},
    {"tuple_new", &tuple_new},
    {"interpreters", &interpreters},
    {"graph_task", &graph_task},
    {"marks", &marks},
    {"is_neg", &is_neg},
    {"is_contiguous", &is_contiguous},
    {"contiguous", &contiguous},
    {"data_ptr", &data_ptr},
    {"storage_offset", &storage_offset},
    {"storage", &storage},
    {"storage_bytes", &storage_bytes},
    {"current_device", &current_device},
    {"current_stream", &current_stream},
    {"modules", &modules},
};
static void (*measure_one)(const char *, const void *, char *, char *);
static int (*copy_on_device)(uint64_t, uint64_t, size_t, void *);
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

/* The number of this call, or -1 with an error. */
static Int number_call(PyObject *numbers, PyObject *moment) {
    Numbers *n = (Numbers *)numbers;
    PyObject *phase = PyTuple_GetItem(moment, 4);
    Int call = PyLong_AsLongLong(PyTuple_GetItem(moment, 0)), step = PyLong_AsLongLong(PyTuple_GetItem(moment, 1));
    if (step == n->step && phase == n->phase && call == n->end && n->others == Py_None) return n->end++;
    return number_of(METHOD(numbers, "take", "LOL", step, phase, call));
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

enum { TAKEN = 1, NOT_HERE = 0, FAILED = -1, OTHERWISE = 2 };

/* Fills a row. OTHERWISE: as the slot says, but by Python. */
static int fill(Recording *r, Slot *s, Int address, PyObject *moment, Counts *counts) {
    Gathering *g = (Gathering *)r->gathering;
    if (r->strict) {
        if (answer(METHOD(r, "raise_failure", NULL), 0) < 0) return FAILED;
    }
    Int step = PyLong_AsLongLong(PyTuple_GetItem(moment, 1));
    if (step > r->last_step && answer(METHOD(r, "begin_step", "L", step), 0) < 0) return FAILED;
    if (s->large || (s->on_device && (!s->gathers || !copy_on_device))) return OTHERWISE;
    if (s->on_device && number_of(CALL(current_device)) != s->index) return PyErr_Occurred() ? FAILED : OTHERWISE;
    Int call = number_call(s->numbers, moment);
    if (call < 0) return FAILED;
    Py_INCREF(s);
    for (int turn = 0;; turn++) {
        Batch *b = (Batch *)g->open;
        int room = g->open != Py_None && b->count < b->capacity && b->used + s->arena_bytes <= b->arena_size &&
                   (!s->kept || b->credit >= s->nbytes) && s->plans == g->plans;
        if (!room) {
            PyObject *slot = turn < 100 ? METHOD(g, "make_room", "OO", s, counts) : NULL;
            Py_DECREF(s);
            if (!slot) {
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "no room for a record");
                return FAILED;
            }
            if (slot == Py_None) { /* the record is left out, and counted */
                Py_DECREF(slot);
                return TAKEN;
            }
            s = (Slot *)slot;
            continue;
        }
        Py_INCREF(b);
        Int number = moment_number(b, moment);
        Part *part = number >= 0 && s->on_device ? part_of(b, s->index) : NULL;
        int failed = number < 0 || (s->on_device && !part);
        int changed = !failed && (g->open != (PyObject *)b || b->count >= b->capacity ||
                                  b->used + s->arena_bytes > b->arena_size || (s->kept && b->credit < s->nbytes));
        if (failed || changed) { /* another thread was here while Python ran */
            Py_DECREF(b);
            if (changed) continue;
            Py_DECREF(s);
            return FAILED;
        }
        /* From here to the count, nothing of Python runs. */
        Int row = b->count, source = s->gathers ? b->used : -1;
        char *at = (char *)(intptr_t)(b->address + row * b->row_bytes);
        int error = 0;
        if (!s->gathers) {
            measure_one((const char *)(intptr_t)address, (const void *)(intptr_t)s->task_address, NULL, at + sizeof(Head));
        } else if (s->on_device) {
            error = copy_on_device((uint64_t)(part->address + source), (uint64_t)address, (size_t)s->nbytes,
                                   (void *)(intptr_t)part->stream);
            if (part->end != source) close_segment(part), part->begin = source;
            part->end = source + s->arena_bytes;
        } else {
            memcpy((char *)(intptr_t)(b->arena_address + source), (const char *)(intptr_t)address, (size_t)s->nbytes);
        }
        if (!error) {
            Head head = {(int32_t)s->number, (int32_t)call,   r->order++, (int32_t)number,
                         (int32_t)source,    s->kept ? source : -1};
            memcpy(at, &head, sizeof head);
            b->used += s->arena_bytes;
            if (s->kept) b->credit -= s->nbytes;
            b->count = row + 1, g->taken++, counts->tensors++;
        }
        int due = b->count == b->capacity ||
                  (row % g->look == g->look - 1 && !g->crowded && now() - b->opened >= g->age);
        Py_DECREF(b);
        Py_DECREF(s);
        if (error) {
            PyErr_Format(PyExc_RuntimeError, "cuMemcpyDtoDAsync: error %d", error);
            return FAILED;
        }
        return due && answer(METHOD(g, "hand_over", NULL), 0) < 0 ? FAILED : TAKEN;
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

static PyObject *module_take(PyObject *Py_UNUSED(module), PyObject *const *a, Py_ssize_t n) {
    if (n != 5) {
        PyErr_SetString(PyExc_TypeError, "take(recording, slot, tensor, moment, counts)");
        return NULL;
    }
    int done = take((Recording *)a[0], (Slot *)a[1], a[2], a[3], (Counts *)a[4]);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Whether taps may record, as far as that can be told without Python. */
static int live(const Recording *r) { return r->attached && r->generation == generation; }

/* 1 while the model is in training, 0 in evaluation, -1 where Python must say it. */
static int training(const Recording *r) {
    PyObject *found = r->flags ? PyDict_GetItem(r->flags, s_training) : NULL; /* borrowed */
    return found == Py_True ? 1 : found == Py_False ? 0 : -1;
}

static PyObject *moment_of(Recording *r, Int call, int train) {
    PyObject *found = call < MOMENTS ? r->moments[train][call] : NULL;
    if (found) {
        Py_INCREF(found);
        return found;
    }
    PyObject *values = Py_BuildValue("LLOOOO", call, r->step, r->epoch ? r->epoch : Py_None,
                                     r->batch ? r->batch : Py_None, s_phase[train], Py_False);
    found = values ? CALL(tuple_new, moment_type, values) : NULL;
    Py_XDECREF(values);
    if (found && call < MOMENTS) put(&r->moments[train][call], found);
    return found;
}

/* enter(args, kwargs, direct): counts a call, and returns what it was given and when it happened. */
static PyObject *tap_enter(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    if (n != 3) {
        PyErr_SetString(PyExc_TypeError, "enter(args, kwargs, direct)");
        return NULL;
    }
    Tap *t = (Tap *)self;
    Recording *r = (Recording *)t->recording;
    if (t->idle || (r->simple && !live(r))) {
        t->total += t->idle;
        return PyTuple_Pack(3, a[0], a[1], Py_None);
    }
    if (r->simple && !t->early && a[2] == Py_False) {
        double start = now();
        int train = training(r);
        Int task = train < 0 ? 0 : number_of(CALL(graph_task)); /* -1: outside of any backward pass */
        if (PyErr_Occurred() && task == -1) return NULL;
        if (train >= 0 && task == -1) {
            if (t->step != r->step) t->step = r->step, t->calls[0] = t->calls[1] = 0;
            PyObject *moment = moment_of(r, t->calls[train], train);
            if (!moment) return NULL;
            t->calls[train]++, t->total++, t->forwards++;
            PyObject *found = PyTuple_Pack(3, a[0], a[1], moment);
            Py_DECREF(moment);
            r->overhead += now() - start;
            return found;
        }
    }
    return METHOD(self, "begin_call", "OOO", a[0], a[1], a[2]);
}

/* An error of ours while a tensor was taken: Python counts it, and raises it if the recording is strict. */
static int left_out(PyObject *self) {
    PyObject *type, *error, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    int failed = answer(METHOD(self, "left_out", "(O)", error), 0) < 0;
    Py_XDECREF(type), Py_XDECREF(error), Py_XDECREF(trace);
    return failed ? -1 : 0;
}

/* leave(token, output): takes the output of a call, which is returned. */
static PyObject *tap_leave(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "leave(token, output)");
        return NULL;
    }
    Tap *t = (Tap *)self;
    Recording *r = (Recording *)t->recording;
    PyObject *token = a[0], *output = a[1];
    int done = NOT_HERE;
    if (token != Py_None && !(r->simple && !live(r))) {
        Counts *counts = (Counts *)t->counts;
        if (r->simple && t->plain && (PyObject *)Py_TYPE(token) == moment_type && t->slot && t->slot != Py_None &&
            counts->fired) {
            double start = now();
            PyObject *slot = t->slot;
            Py_INCREF(slot);
            done = take(r, (Slot *)slot, output, token, counts);
            Py_DECREF(slot);
            if (done == FAILED && left_out(self)) return NULL;
            counts->fired += done != NOT_HERE;
            r->overhead += now() - start;
        }
        if (done == NOT_HERE) return METHOD(self, "end_call", "OO", token, output);
    }
    Py_INCREF(output);
    return output;
}

static PyObject *part_close(PyObject *self, PyObject *Py_UNUSED(none)) {
    close_segment((Part *)self);
    Py_RETURN_NONE;
}

static PyObject *batch_claim(PyObject *self, PyObject *Py_UNUSED(none)) {
    Batch *b = (Batch *)self;
    return PyLong_FromLongLong(b->count < b->capacity ? b->count++ : -1);
}

static PyObject *recording_next(PyObject *self, PyObject *Py_UNUSED(none)) {
    return PyLong_FromLongLong(((Recording *)self)->order++);
}

/* The places of the members that are objects, for each type. */
#define OBJECTS(type, ...)                                                                                             \
    static PyObject **type##_objects(PyObject *self, int i) {                                                          \
        type *o = (void *)self;                                                                                        \
        (void)o;                                                                                                       \
        PyObject **all[] = {__VA_ARGS__, NULL};                                                                        \
        return all[i];                                                                                                 \
    }                                                                                                                  \
    static int type##_traverse(PyObject *self, visitproc visit, void *arg) {                                           \
        for (int i = 0; type##_objects(self, i); i++) Py_VISIT(*type##_objects(self, i));                              \
        Py_VISIT(Py_TYPE(self));                                                                                       \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int type##_clear(PyObject *self) {                                                                          \
        for (int i = 0; type##_objects(self, i); i++) Py_CLEAR(*type##_objects(self, i));                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static void type##_dealloc(PyObject *self) {                                                                       \
        PyTypeObject *kind = Py_TYPE(self);                                                                            \
        PyObject_GC_UnTrack(self);                                                                                     \
        type##_clear(self);                                                                                            \
        ((freefunc)PyType_GetSlot(kind, Py_tp_free))(self);                                                            \
        Py_DECREF(kind);                                                                                               \
    }

OBJECTS(Counts, NULL)
OBJECTS(Numbers, &o->phase, &o->others)
OBJECTS(Slot, &o->shape, &o->dtype, &o->device, &o->numbers, &o->plans)
OBJECTS(Part, &o->segments)
OBJECTS(Batch, &o->moment, &o->part)
OBJECTS(Gathering, &o->open, &o->plans)
#define EACH2(m, i) &o->m[0][i], &o->m[1][i]
OBJECTS(Recording, &o->epoch, &o->batch, &o->flags, &o->gathering, EACH2(moments, 0), EACH2(moments, 1),
        EACH2(moments, 2), EACH2(moments, 3), EACH2(moments, 4), EACH2(moments, 5), EACH2(moments, 6), EACH2(moments, 7))
OBJECTS(Tap, &o->recording, &o->counts, &o->slot)

#define WHOLE(type, name) {#name, T_LONGLONG, offsetof(type, name), 0, NULL}
#define FLAG(type, name) {#name, T_BOOL, offsetof(type, name), 0, NULL}
#define OBJECT(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define REAL(type, name) {#name, T_DOUBLE, offsetof(type, name), 0, NULL}

static PyMemberDef Counts_members[] = {WHOLE(Counts, fired), WHOLE(Counts, tensors), WHOLE(Counts, direct),
                                       WHOLE(Counts, recomputed), WHOLE(Counts, dropped), {0}};
static PyMemberDef Numbers_members[] = {WHOLE(Numbers, step), WHOLE(Numbers, end), OBJECT(Numbers, phase),
                                        OBJECT(Numbers, others), {0}};
static PyMemberDef Slot_members[] = {
    OBJECT(Slot, shape), OBJECT(Slot, dtype), OBJECT(Slot, device), OBJECT(Slot, numbers), OBJECT(Slot, plans),
    WHOLE(Slot, number), WHOLE(Slot, nbytes), WHOLE(Slot, itemsize), WHOLE(Slot, arena_bytes), WHOLE(Slot, index),
    WHOLE(Slot, task_address), FLAG(Slot, kept), FLAG(Slot, gathers), FLAG(Slot, on_device), FLAG(Slot, large), {0}};
static PyMemberDef Part_members[] = {WHOLE(Part, address), WHOLE(Part, stream), WHOLE(Part, index),
                                     OBJECT(Part, segments), WHOLE(Part, begin), WHOLE(Part, end), {0}};
static PyMemberDef Batch_members[] = {
    OBJECT(Batch, moment), OBJECT(Batch, part), WHOLE(Batch, address), WHOLE(Batch, count), WHOLE(Batch, capacity),
    WHOLE(Batch, row_bytes), WHOLE(Batch, arena_address), WHOLE(Batch, arena_size), WHOLE(Batch, used),
    WHOLE(Batch, credit), WHOLE(Batch, moment_number), REAL(Batch, opened), {0}};
static PyMemberDef Gathering_members[] = {OBJECT(Gathering, open), OBJECT(Gathering, plans), WHOLE(Gathering, taken),
                                          REAL(Gathering, age), WHOLE(Gathering, look), FLAG(Gathering, crowded), {0}};
static PyMemberDef Recording_members[] = {OBJECT(Recording, flags), OBJECT(Recording, gathering),
                                          WHOLE(Recording, last_step), WHOLE(Recording, order),
                                          REAL(Recording, overhead), FLAG(Recording, attached), FLAG(Recording, simple),
                                          FLAG(Recording, strict), {0}};
static PyMemberDef Tap_members[] = {
    OBJECT(Tap, recording), OBJECT(Tap, counts), OBJECT(Tap, slot), WHOLE(Tap, step), WHOLE(Tap, total),
    WHOLE(Tap, forwards), {"eval_calls", T_LONGLONG, offsetof(Tap, calls[0]), 0, NULL},
    {"train_calls", T_LONGLONG, offsetof(Tap, calls[1]), 0, NULL}, FLAG(Tap, idle), FLAG(Tap, early), FLAG(Tap, plain), {0}};

/* Where the recording is changes what its calls' moments are. */
static void forget_moments(Recording *r) {
    for (int i = 0; i < 2 * MOMENTS; i++) Py_CLEAR(r->moments[i / MOMENTS][i % MOMENTS]);
}
static PyObject *get_object(PyObject *self, void *offset) {
    PyObject *found = *(PyObject **)((char *)self + (intptr_t)offset);
    found = found ? found : Py_None;
    Py_INCREF(found);
    return found;
}
static int set_object(PyObject *self, PyObject *value, void *offset) {
    forget_moments((Recording *)self);
    put((PyObject **)((char *)self + (intptr_t)offset), value);
    return 0;
}
static PyObject *get_step(PyObject *self, void *Py_UNUSED(none)) { return PyLong_FromLongLong(((Recording *)self)->step); }
static int set_step(PyObject *self, PyObject *value, void *Py_UNUSED(none)) {
    Int step = value ? PyLong_AsLongLong(value) : 0;
    if (PyErr_Occurred()) return -1;
    forget_moments((Recording *)self);
    ((Recording *)self)->step = step;
    return 0;
}
static PyGetSetDef Recording_getset[] = {
    {"epoch", get_object, set_object, NULL, (void *)offsetof(Recording, epoch)},
    {"batch", get_object, set_object, NULL, (void *)offsetof(Recording, batch)},
    {"step_number", get_step, set_step, NULL, NULL},
    {0}};
static PyObject *of_this_process(PyObject *self, PyObject *Py_UNUSED(none)) {
    return PyBool_FromLong(((Recording *)self)->generation == generation);
}
static PyObject *begin_in_process(PyObject *self, PyObject *Py_UNUSED(none)) {
    ((Recording *)self)->generation = generation;
    Py_RETURN_NONE;
}

#define FAST(name, function) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}
#define PLAIN(name, function) {name, function, METH_NOARGS, NULL}
static PyMethodDef none_methods[] = {{0}};
static PyMethodDef Part_methods[] = {PLAIN("close_segment", part_close), {0}};
static PyMethodDef Batch_methods[] = {PLAIN("claim", batch_claim), {0}};
static PyMethodDef Recording_methods[] = {PLAIN("next_order", recording_next), PLAIN("of_this_process", of_this_process),
                                          PLAIN("begin_in_process", begin_in_process), {0}};
static PyMethodDef Tap_methods[] = {FAST("enter", tap_enter), FAST("leave", tap_leave), {0}};

static PyTypeObject *make_type(PyObject *module, const char *name, int size, void *traverse, void *clear, void *dealloc,
                               PyMemberDef *members, PyMethodDef *methods, PyGetSetDef *getset) {
    PyType_Slot slots[] = {
        {Py_tp_new, PyType_GenericNew}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc},
        {Py_tp_members, members},       {Py_tp_methods, methods},   {getset ? Py_tp_getset : 0, getset}, {0, NULL}};
    PyType_Spec spec = {name, size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    PyObject *type = PyType_FromSpec(&spec);
    if (type && PyModule_AddObject(module, strrchr(name, '.') + 1, (Py_INCREF(type), type))) return NULL;
    return (PyTypeObject *)type;
}

/* connect(names, measure): what it asks torch for, by name, and the address of onepass.c's `layertap_take`. */
static PyObject *connect(PyObject *Py_UNUSED(module), PyObject *const *a, Py_ssize_t n) {
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "connect(names, measure)");
        return NULL;
    }
    for (size_t i = 0; i < sizeof CONNECTED / sizeof *CONNECTED; i++) {
        PyObject *found = PyDict_GetItemString(a[0], CONNECTED[i].name);
        if (!found) {
            PyErr_SetString(PyExc_KeyError, CONNECTED[i].name);
            return NULL;
        }
        put(CONNECTED[i].place, found);
    }
    Int address = PyLong_AsLongLong(a[1]);
    if (PyErr_Occurred()) return NULL;
    measure_one = (void (*)(const char *, const void *, char *, char *))(intptr_t)address;
    Py_RETURN_NONE;
}

/* Whether the driver's own copy on a stream was found; torch's way takes 10 us more. It returns at once. */
static PyObject *find_driver(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    void *driver = copy_on_device ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
    if (driver) copy_on_device = (int (*)(uint64_t, uint64_t, size_t, void *))dlsym(driver, "cuMemcpyDtoDAsync_v2");
    return PyBool_FromLong(copy_on_device != NULL);
}

static PyMethodDef methods[] = {FAST("take", module_take), FAST("connect", connect), PLAIN("find_driver", find_driver), {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tap", "The short way of a tensor into a row.", -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tap(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    pthread_atfork(NULL, NULL, forked);
    s_shape = PyUnicode_InternFromString("shape"), s_dtype = PyUnicode_InternFromString("dtype");
    s_device = PyUnicode_InternFromString("device"), s_training = PyUnicode_InternFromString("training");
    s_marked = PyUnicode_InternFromString("_layertap_sharding");
    s_phase[0] = PyUnicode_InternFromString("eval"), s_phase[1] = PyUnicode_InternFromString("train");
#define TYPE(type, methods, getset)                                                                                    \
    make_type(module, "layertap.capture._tap." #type, sizeof(type), type##_traverse, type##_clear, type##_dealloc,      \
              type##_members, methods, getset)
    if (!TYPE(Counts, none_methods, NULL) || !TYPE(Numbers, none_methods, NULL) || !TYPE(Slot, none_methods, NULL) ||
        !TYPE(Part, Part_methods, NULL) || !TYPE(Batch, Batch_methods, NULL) || !TYPE(Gathering, none_methods, NULL) ||
        !TYPE(Recording, Recording_methods, Recording_getset) || !TYPE(Tap, Tap_methods, NULL))
        return NULL;
    return module;
}
