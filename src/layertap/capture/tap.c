/* The short way of a tensor from a module's call into a row of the open batch, without a function of Python.
 *
 * What was found out at a module's first calls (slots.py) is only checked here. Whatever is not as it was then is left to
 * Python, which knows all cases: `take` returns False, `enter` and `leave` call `begin_call` and `end_call`. Python's lock
 * is held throughout. Between the last look at the open batch and the count of its rows nothing of Python runs, so no
 * other thread can fill the same row or close the batch meanwhile.
 *
 * Compiled against the limited API of Python 3.10, so that one library serves all later versions.
 */
#include "tap_take.h"
#include "tap_calls.h"
#include "tap_fetch.h"

/* What `connect` is given, by name. */
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
    {"tap_class", &tap_class},
    {"tracing_state", &tracing_state},
    {"is_compiling", &is_compiling},
    {"all_taps", &all_taps},
    {"this_thread", &this_thread},
    {"module_call", &module_call},
    {"global_pre_hooks", &global_pre_hooks},
    {"function_type", &function_type},
    {"fx_tracing", &fx_tracing},
};

static PyObject *module_take(PyObject *Py_UNUSED(module), PyObject *const *a, Py_ssize_t n) {
    if (n != 5) {
        PyErr_SetString(PyExc_TypeError, "take(recording, slot, tensor, moment, counts)");
        return NULL;
    }
    int done = take((Recording *)a[0], (Slot *)a[1], a[2], a[3], (Counts *)a[4]);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *numbers_take(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    if (n != 3) {
        PyErr_SetString(PyExc_TypeError, "take(step, phase, call)");
        return NULL;
    }
    Int step = PyLong_AsLongLong(a[0]), call = PyLong_AsLongLong(a[2]);
    Int number = PyErr_Occurred() ? -1 : take_number((Numbers *)self, step, a[1], call);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(number);
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
#define TAKEN_OBJECTS(t) &o->t.phase, &o->t.others
OBJECTS(Numbers, TAKEN_OBJECTS(now), TAKEN_OBJECTS(before[0]), TAKEN_OBJECTS(before[1]), TAKEN_OBJECTS(before[2]))
OBJECTS(Slot, &o->shape, &o->dtype, &o->device, &o->numbers, &o->plans, &o->kernel)
OBJECTS(Kernel, NULL)
OBJECTS(Part, &o->segments, &o->rows)
OBJECTS(Batch, &o->moment, &o->part)
OBJECTS(Gathering, &o->open, &o->plans)
_Static_assert(MOMENTS == 8, "each moment is named below");
#define EACH2(m, i) &o->m[0][i], &o->m[1][i]
OBJECTS(Recording, &o->epoch, &o->batch, &o->flags, &o->gathering, EACH2(moments, 0), EACH2(moments, 1),
        EACH2(moments, 2), EACH2(moments, 3), EACH2(moments, 4), EACH2(moments, 5), EACH2(moments, 6), EACH2(moments, 7))
OBJECTS(Tap, &o->recording, &o->counts, &o->slot)
OBJECTS(UnderWay, &o->modules, &o->waiting)
OBJECTS(Method, &o->cls, &o->general)

#define WHOLE(type, name) {#name, T_LONGLONG, offsetof(type, name), 0, NULL}
#define FLAG(type, name) {#name, T_BOOL, offsetof(type, name), 0, NULL}
#define OBJECT(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define REAL(type, name) {#name, T_DOUBLE, offsetof(type, name), 0, NULL}

static PyMemberDef Counts_members[] = {WHOLE(Counts, fired), WHOLE(Counts, tensors), WHOLE(Counts, direct),
                                       WHOLE(Counts, recomputed), WHOLE(Counts, dropped), {0}};
static PyMemberDef Numbers_members[] = {{0}};
static PyMemberDef Slot_members[] = {
    OBJECT(Slot, shape), OBJECT(Slot, dtype), OBJECT(Slot, device), OBJECT(Slot, numbers), OBJECT(Slot, plans),
    OBJECT(Slot, kernel),
    WHOLE(Slot, number), WHOLE(Slot, nbytes), WHOLE(Slot, itemsize), WHOLE(Slot, arena_bytes), WHOLE(Slot, index),
    {"count", T_LONGLONG, offsetof(Slot, task.count), 0, NULL},
    {"kind", T_LONGLONG, offsetof(Slot, task.kind), 0, NULL}, {"table", T_ULONGLONG, offsetof(Slot, task.table), 0, NULL}, FLAG(Slot, kept), FLAG(Slot, gathers), FLAG(Slot, on_device), FLAG(Slot, large), {0}};
static PyMemberDef Kernel_members[] = {WHOLE(Kernel, function), WHOLE(Kernel, threads), WHOLE(Kernel, shared),
                                       WHOLE(Kernel, tile), WHOLE(Kernel, lanes), WHOLE(Kernel, workers),
                                       WHOLE(Kernel, slices), {0}};
static PyMemberDef Part_members[] = {
    WHOLE(Part, address), WHOLE(Part, stream), WHOLE(Part, index), WHOLE(Part, begin), WHOLE(Part, end),
    WHOLE(Part, slab), WHOLE(Part, last_slab), WHOLE(Part, slab_bytes), WHOLE(Part, scratch), WHOLE(Part, scratch_bytes),
    WHOLE(Part, waiting), WHOLE(Part, together), OBJECT(Part, segments), OBJECT(Part, rows), {0}};
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

static PyMemberDef UnderWay_members[] = {OBJECT(UnderWay, modules), OBJECT(UnderWay, waiting), FLAG(UnderWay, unseen), {0}};
static PyMemberDef Method_members[] = {OBJECT(Method, cls), OBJECT(Method, general), FLAG(Method, simple), {0}};

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
static PyMethodDef Numbers_methods[] = {FAST("take", numbers_take), {0}};
static PyMethodDef Part_methods[] = {PLAIN("close_segment", part_close), {0}};
static PyMethodDef Batch_methods[] = {PLAIN("claim", batch_claim), {0}};
static PyMethodDef Recording_methods[] = {PLAIN("next_order", recording_next), PLAIN("of_this_process", of_this_process),
                                          PLAIN("begin_in_process", begin_in_process), {0}};
static PyMethodDef Tap_methods[] = {FAST("enter", tap_enter), FAST("leave", tap_leave), {0}};

/* So that Python passes the module to `__call__` without making a bound method first. */
enum { METHOD_DESCRIPTOR = 1 << 17 };

static PyTypeObject *make_type(PyObject *module, const char *name, int size, void *traverse, void *clear, void *dealloc,
                               PyMemberDef *members, PyMethodDef *methods, PyType_Slot more, int flags) {
    PyType_Slot got = {flags ? Py_tp_descr_get : 0, call_get};
    PyType_Slot slots[] = {
        {Py_tp_new, PyType_GenericNew}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc},
        {Py_tp_members, members},       {Py_tp_methods, methods},   more,                 got, {0, NULL}};
    PyType_Spec spec = {name, size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | flags, slots};
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

/* Whether the driver's own copy and launch were found; torch's way takes 10 us more. They return at once. */
static PyObject *find_driver(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    void *driver = copy_on_device ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
    void *copy = driver ? dlsym(driver, "cuMemcpyDtoDAsync_v2") : NULL, *launch = driver ? dlsym(driver, "cuLaunchKernel") : NULL;
    if (copy && launch) memcpy(&copy_on_device, &copy, sizeof copy), memcpy(&launch_kernel, &launch, sizeof launch);
    if (driver) find_fetch(driver);
    return PyBool_FromLong(copy_on_device != NULL);
}

/* Whether there is a `fetch`; `find_driver` looks. */
static PyObject *can_fetch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyBool_FromLong(copy_to_host != NULL);
}

static PyMethodDef methods[] = {FAST("take", module_take), FAST("fetch", module_fetch), PLAIN("can_fetch", can_fetch), FAST("connect", connect), PLAIN("find_driver", find_driver), {0}};
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
    s_calls = PyUnicode_InternFromString("calls"), s_call = PyUnicode_InternFromString("__call__");
    s_call_impl = PyUnicode_InternFromString("_call_impl"), s_forward = PyUnicode_InternFromString("forward");
    s_mro = PyUnicode_InternFromString("__mro__");
    s_is_tracing = PyUnicode_InternFromString("_is_fx_tracing_flag");
    s_compiled = PyUnicode_InternFromString("_compiled_call_impl");
    s_pre_hooks = PyUnicode_InternFromString("_forward_pre_hooks"), s_dict = PyUnicode_InternFromString("__dict__");
    PyType_Slot none = {0, NULL}, getset = {Py_tp_getset, Recording_getset}, called = {Py_tp_call, method_call};
    PyType_Slot got = {Py_tp_descr_get, forward_get};
#define NAMED(name, type, methods, more, flags)                                                                        \
    make_type(module, "layertap.capture._tap." name, sizeof(type), type##_traverse, type##_clear, type##_dealloc,       \
              type##_members, methods, more, flags)
    if (!NAMED("TapCounts", Counts, none_methods, none, 0) || !NAMED("CallNumbers", Numbers, Numbers_methods, none, 0) || !NAMED("SlotBase", Slot, none_methods, none, 0) ||
        !NAMED("PartBase", Part, Part_methods, none, 0) || !NAMED("KernelLaunch", Kernel, none_methods, none, 0) || !NAMED("BatchBase", Batch, Batch_methods, none, 0) || !NAMED("GatheringBase", Gathering, none_methods, none, 0) ||
        !NAMED("RecordingBase", Recording, Recording_methods, getset, 0) || !NAMED("TapBase", Tap, Tap_methods, none, 0) ||
        !NAMED("UnderWayBase", UnderWay, none_methods, none, 0) || !NAMED("Call", Method, none_methods, called, METHOD_DESCRIPTOR) ||
        !NAMED("Forward", Method, none_methods, got, 0))
        return NULL;
    return module;
}
