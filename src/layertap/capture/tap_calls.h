/* The calls of a module: counted as they begin, their output taken as they end. */
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

/* Counts a call that is simple: its moment, new; None where nothing is recorded. NULL, and no error, where Python must. */
static PyObject *begin(Tap *t) {
    Recording *r = (Recording *)t->recording;
    PyObject *moment = NULL;
    if (t->idle || (r->simple && !live(r))) {
        t->total += t->idle;
        moment = Py_None;
        Py_INCREF(moment);
    } else if (r->simple && !t->early) {
        double start = now();
        int train = training(r);
        Int task = train < 0 ? 0 : number_of(CALL(graph_task)); /* -1: outside of any backward pass */
        if (train >= 0 && task == -1 && !PyErr_Occurred()) {
            if (t->step != r->step) t->step = r->step, t->calls[0] = t->calls[1] = 0;
            moment = moment_of(r, t->calls[train], train);
            if (moment) t->calls[train]++, t->total++, t->forwards++;
        }
        r->overhead += now() - start;
    }
    return moment;
}

/* enter(args, kwargs, direct): counts a call, and returns what it was given and when it happened. */
static PyObject *tap_enter(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    if (n != 3) {
        PyErr_SetString(PyExc_TypeError, "enter(args, kwargs, direct)");
        return NULL;
    }
    PyObject *moment = a[2] == Py_False || ((Tap *)self)->idle ? begin((Tap *)self) : NULL;
    if (!moment) return PyErr_Occurred() ? NULL : METHOD(self, "begin_call", "OOO", a[0], a[1], a[2]);
    PyObject *found = PyTuple_Pack(3, a[0], a[1], moment);
    Py_DECREF(moment);
    return found;
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

/* Takes the output of a call, and returns it. */
static PyObject *end(PyObject *self, PyObject *token, PyObject *output) {
    Tap *t = (Tap *)self;
    Recording *r = (Recording *)t->recording;
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

static PyObject *tap_leave(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    if (n == 2) return end(self, a[0], a[1]);
    PyErr_SetString(PyExc_TypeError, "leave(token, output)");
    return NULL;
}

/* The calls of tapped modules that are under way in a thread (taps.py). */
typedef struct { PyObject_HEAD PyObject *modules, *waiting; char unseen; } UnderWay;

/* `__call__` of a tapped class, or its `forward`; `general` is the same in Python, for all that is not simple here. */
typedef struct { PyObject_HEAD PyObject *cls, *general; char simple; } Method;

static PyObject *tap_class, *tracing_state, *is_compiling, *all_taps, *this_thread, *module_call, *global_pre_hooks,
    *function_type, *fx_tracing;
static PyObject *s_calls, *s_call, *s_call_impl, *s_is_tracing, *s_compiled, *s_pre_hooks, *s_forward, *s_dict, *s_mro;

/* What is under way in this thread; NULL with an error. */
static UnderWay *under_way(void) { return (UnderWay *)PyObject_GetAttr(this_thread, s_calls); }

static int is_false(PyObject *found) {
    int no = found == Py_None || found == Py_False;
    Py_XDECREF(found);
    return no;
}

/* What is to be called of a module's class: its `__call__`, or what torch's own one calls where nothing comes before it
 * (no hook, nothing compiled). NULL where Python must look. */
static PyObject *callee(PyObject *module, PyObject *cls) {
    PyObject *call = PyObject_GetAttr(cls, s_call);
    if (call != module_call) { /* a class with its own, which calls torch's one by itself */
        if (call && is_false(PyObject_GetAttr(fx_tracing, s_is_tracing))) return call;
        Py_XDECREF(call);
        return NULL;
    }
    Py_DECREF(call);
    if (PyObject_Length(global_pre_hooks)) return NULL;
    PyObject *compiled = PyObject_GetAttr(module, s_compiled), *hooks = PyObject_GetAttr(module, s_pre_hooks);
    int plain = compiled == Py_None && hooks && PyObject_Length(hooks) == 0;
    Py_XDECREF(compiled), Py_XDECREF(hooks);
    return plain ? PyObject_GetAttr(cls, s_call_impl) : NULL;
}

/* The one tap of a module that is called in the simplest way, borrowed; NULL where Python must look. */
static PyObject *only_tap(PyObject *key, const UnderWay *thread) {
    PyObject *taps = PyDict_GetItem(all_taps, key); /* borrowed */
    if (!taps || thread->unseen || PyDict_Size(thread->waiting) || PyTuple_Size(taps) != 1) return NULL;
    PyObject *tap = PyTuple_GetItem(taps, 0);
    if (Py_TYPE(tap) != (PyTypeObject *)tap_class) return NULL;
    return is_false(CALL(tracing_state)) && is_false(CALL(is_compiling)) ? tap : NULL;
}

/* Tells a tap that its call was ended by the error that is set, which stays set. */
static void tell_stopped(PyObject *tap, PyObject *token) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *done = METHOD(tap, "stopped", "OO", token, error);
    if (!done) PyErr_WriteUnraisable(tap);
    Py_XDECREF(done);
    PyErr_Restore(type, error, trace);
}

/* The call of a module with one tap, which sees it; `called` is its `callee`. */
static PyObject *call_tapped(PyObject *called, PyObject *tap, UnderWay *thread, PyObject *key, PyObject *args,
                             PyObject *kwargs) {
    PyObject *token = begin((Tap *)tap), *output = NULL;
    if (!token && PyErr_Occurred()) return NULL;
    Py_INCREF(args), Py_XINCREF(kwargs);
    if (!token) {
        PyObject *module = PyTuple_GetSlice(args, 0, 1), *given = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
        PyObject *names = kwargs ? (Py_INCREF(kwargs), kwargs) : PyDict_New();
        PyObject *begun = module && given && names ? METHOD(tap, "begin_call", "OOO", given, names, Py_False) : NULL;
        if (begun) {
            Py_DECREF(args), Py_XDECREF(kwargs);
            args = PySequence_Concat(module, PyTuple_GetItem(begun, 0));
            kwargs = PyTuple_GetItem(begun, 1), token = PyTuple_GetItem(begun, 2);
            Py_INCREF(kwargs), Py_INCREF(token);
        }
        Py_XDECREF(module), Py_XDECREF(given), Py_XDECREF(names), Py_XDECREF(begun);
    }
    int nested = token && args ? PySet_Contains(thread->modules, key) : -1;
    if (nested >= 0 && !PySet_Add(thread->modules, key)) {
        output = PyObject_Call(called, args, kwargs);
        if (!output) tell_stopped(tap, token);
        if (!nested) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PySet_Discard(thread->modules, key);
            PyErr_Restore(type, error, trace);
        }
    }
    Py_XDECREF(args), Py_XDECREF(kwargs);
    if (output) {
        PyObject *seen = end(tap, token, output);
        Py_DECREF(output);
        output = seen;
    }
    Py_XDECREF(token);
    return output;
}

static PyObject *method_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    Method *method = (Method *)self;
    PyObject *module = PyTuple_GetItem(args, 0), *key = NULL, *tap = NULL, *called = NULL, *output;
    UnderWay *thread = module && method->simple ? under_way() : NULL;
    if (thread) key = PyLong_FromVoidPtr(module);
    if (key) tap = only_tap(key, thread);
    if (tap && !PyErr_Occurred()) called = callee(module, method->cls);
    if (called && !PyErr_Occurred()) {
        Py_INCREF(tap);
        output = call_tapped(called, tap, thread, key, args, kwargs);
        Py_DECREF(tap);
    } else {
        PyErr_Clear();
        output = PyObject_Call(method->general, args, kwargs);
    }
    Py_XDECREF(key), Py_XDECREF(called), Py_XDECREF((PyObject *)thread);
    return output;
}

/* `forward` as the first class of the module's that has one holds it: an attribute of a class may be a static method. */
static PyObject *forward_of(PyObject *cls) {
    PyObject *classes = PyObject_GetAttr(cls, s_mro), *found = NULL;
    for (Py_ssize_t i = 0; classes && !found && i < PyTuple_Size(classes); i++) {
        PyObject *names = PyObject_GetAttr(PyTuple_GetItem(classes, i), s_dict);
        found = names ? PyObject_GetItem(names, s_forward) : NULL;
        if (!found) PyErr_Clear();
        Py_XDECREF(names);
    }
    Py_XDECREF(classes);
    return found;
}

/* `module.forward` within the module's own call, which is no call of its own; else as Python finds it. */
static PyObject *forward_get(PyObject *self, PyObject *module, PyObject *owner) {
    Method *method = (Method *)self;
    PyObject *found = NULL, *bound = NULL, *key = NULL;
    UnderWay *thread = module && module != Py_None && method->simple ? under_way() : NULL;
    if (thread && !PyDict_Size(thread->waiting) && (key = PyLong_FromVoidPtr(module)) &&
        PySet_Contains(thread->modules, key) == 1)
        found = forward_of(method->cls);
    if (found && (PyObject *)Py_TYPE(found) == function_type)
        bound = ((descrgetfunc)PyType_GetSlot((PyTypeObject *)function_type, Py_tp_descr_get))(found, module, method->cls);
    Py_XDECREF(found), Py_XDECREF(key), Py_XDECREF((PyObject *)thread);
    if (bound) return bound;
    PyErr_Clear();
    descrgetfunc general = (descrgetfunc)PyType_GetSlot(Py_TYPE(method->general), Py_tp_descr_get);
    return general(method->general, module, owner);
}

/* `module.__call__`, looked up and kept: the method in Python. */
static PyObject *call_get(PyObject *self, PyObject *module, PyObject *owner) {
    Method *method = (Method *)self;
    return ((descrgetfunc)PyType_GetSlot(Py_TYPE(method->general), Py_tp_descr_get))(method->general, module, owner);
}
