/* A stand-in for libcuda.so.1 on machines without a GPU: cuda-bindings and cuda-core run on it as they are.
 *
 * It computes nothing. It keeps books of contexts, streams and partitions of multiprocessors as cuda.h describes them,
 * checks every handle, and counts what is alive. What it says of a GPU is what cuda.h says; a test on it proves our
 * code's calls and their order, and nothing about a GPU.
 *
 * The environment sets FAKE_DEVICES, FAKE_MULTIPROCESSORS, FAKE_DRIVER (13050 is CUDA 13.5), FAKE_INIT (what cuInit
 * returns) and FAKE_LEAST/FAKE_GREATEST (priorities). Functions that begin with fake_ are for tests.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Result;
typedef unsigned Count;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400, NOT_FOUND = 500, INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915,
};

enum Kind { CONTEXT, STREAM, GREEN, DESCRIPTION, KINDS };

/* Everything that a handle can stand for. */
typedef struct Object {
    enum Kind kind;
    int device;
    int priority;
    Count flags;
    Count multiprocessors;
    struct Object *context; /* of a stream, and of a green context: the primary one below it */
    struct Object *green;   /* of a stream in a partition */
    struct Object *next;
} Object;

enum { MOST_DEVICES = 8, STACK = 32 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Object *objects;
static long alive[KINDS];
static Object primary[MOST_DEVICES];
static int retained[MOST_DEVICES];
static int initialized;
static int failed_device = -1;
static _Thread_local Object *stack[STACK];
static _Thread_local int depth;

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

static int devices(void) { return setting("FAKE_DEVICES", 1); }
static Count multiprocessors(void) { return (Count)setting("FAKE_MULTIPROCESSORS", 132); }
static int least(void) { return setting("FAKE_LEAST", 0); }
static int greatest(void) { return setting("FAKE_GREATEST", -5); }
static int known(int device) { return device >= 0 && device < devices() && device < MOST_DEVICES; }
static Object *current(void) { return depth ? stack[depth - 1] : NULL; }

static Object *create(enum Kind kind) {
    Object *object = calloc(1, sizeof *object);
    object->kind = kind;
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    alive[kind]++;
    pthread_mutex_unlock(&lock);
    return object;
}

static Object *find(void *handle, enum Kind kind) {
    pthread_mutex_lock(&lock);
    Object *object = objects;
    while (object && !(object == handle && object->kind == kind)) object = object->next;
    pthread_mutex_unlock(&lock);
    return object;
}

static Result destroy(void *handle, enum Kind kind) {
    Result result = INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    for (Object **place = &objects; *place; place = &(*place)->next) {
        if (*place != handle || (*place)->kind != kind) continue;
        Object *object = *place;
        *place = object->next;
        alive[kind]--;
        free(object);
        result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- What tests set and read ---- */

static struct { char function[64]; int after; Result result; } failure;

/* Let the call of `function` after `after` successful ones return `result`, and every later one too. */
EXPORT void fake_fail(const char *function, int after, Result result) {
    snprintf(failure.function, sizeof failure.function, "%s", function);
    failure.after = after;
    failure.result = result;
}

/* Let every call about a stream of a device fail, as after an error that its context does not recover from. */
EXPORT void fake_fail_device(int device) { failed_device = device; }

EXPORT long fake_alive(const char *kind) {
    static const char *const names[] = {"context", "stream", "green", "description"};
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind, names[i])) return alive[i];
    return -1;
}

EXPORT int fake_priority(void *stream) { Object *object = find(stream, STREAM); return object ? object->priority : 99; }
EXPORT int fake_device(void *stream) { Object *object = find(stream, STREAM); return object ? object->device : -1; }
EXPORT unsigned fake_flags(void *stream) { Object *object = find(stream, STREAM); return object ? object->flags : 99; }

static Result enter(const char *function) {
    if (getenv("FAKE_TRACE")) fprintf(stderr, "%s\n", function);
    if (!strcmp(function, failure.function) && failure.after-- <= 0) return failure.result;
    return initialized || !strcmp(function, "cuInit") ? SUCCESS : NOT_INITIALIZED;
}

#define ENTER do { Result entered = enter(__func__); if (entered) return entered; } while (0)
#define NEED(condition, otherwise) do { if (!(condition)) return (otherwise); } while (0)
#define STREAM_OF(handle) \
    Object *stream = find(handle, STREAM); \
    NEED(stream, INVALID_HANDLE); \
    NEED(stream->device != failed_device, 719 /* CUDA_ERROR_LAUNCH_FAILED */)

/* ---- The driver and its devices ---- */

EXPORT Result cuInit(Count flags) {
    ENTER;
    NEED(flags == 0, INVALID_VALUE);
    Result set = setting("FAKE_INIT", SUCCESS);
    NEED(set == SUCCESS, set);
    NEED(devices() > 0, NO_DEVICE);
    initialized = 1;
    return SUCCESS;
}

EXPORT Result cuDriverGetVersion(int *version) { *version = setting("FAKE_DRIVER", 13050); return SUCCESS; }

EXPORT Result cuGetErrorName(Result error, const char **name) {
    *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : "CUDA_ERROR_OF_THE_FAKE_DRIVER";
    return SUCCESS;
}

EXPORT Result cuGetErrorString(Result error, const char **text) {
    static _Thread_local char buffer[32];
    snprintf(buffer, sizeof buffer, "error %d", error);
    *text = buffer;
    return SUCCESS;
}

EXPORT Result cuDeviceGetCount(int *count) { ENTER; *count = devices(); return SUCCESS; }
EXPORT Result cuDeviceGet(int *device, int index) { ENTER; NEED(known(index), INVALID_DEVICE); *device = index; return SUCCESS; }
EXPORT Result cuDeviceGetName(char *name, int size, int device) { ENTER; snprintf(name, (size_t)size, "fake GPU %d", device); return SUCCESS; }
EXPORT Result cuDeviceGetUuid_v2(char *uuid, int device) { ENTER; memset(uuid, 0, 16); uuid[15] = (char)device; return SUCCESS; }

EXPORT Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    NEED(known(device), INVALID_DEVICE);
    *value = attribute == 16 ? (int)multiprocessors() : attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return SUCCESS;
}

EXPORT Result cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER;
    NEED(current(), INVALID_CONTEXT);
    *total = (size_t)1 << 30;
    *available = *total - ((size_t)current()->device + 1) * 1000;
    return SUCCESS;
}

/* ---- Contexts ---- */

EXPORT Result cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER;
    NEED(known(device), INVALID_DEVICE);
    primary[device].kind = CONTEXT;
    primary[device].device = device;
    retained[device]++;
    *context = &primary[device];
    return SUCCESS;
}

EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER;
    NEED(known(device) && retained[device] > 0, INVALID_CONTEXT);
    retained[device]--;
    return SUCCESS;
}

EXPORT Result cuCtxGetCurrent(void **context) { ENTER; *context = current(); return SUCCESS; }

EXPORT Result cuCtxSetCurrent(void *context) {
    ENTER;
    if (!context) {
        if (depth) depth--;
        return SUCCESS;
    }
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return SUCCESS;
}

EXPORT Result cuCtxPushCurrent_v2(void *context) { ENTER; NEED(context && depth < STACK, INVALID_CONTEXT); stack[depth++] = context; return SUCCESS; }

EXPORT Result cuCtxPopCurrent_v2(void **context) {
    ENTER;
    NEED(depth, INVALID_CONTEXT);
    Object *top = stack[--depth];
    if (context) *context = top;
    return SUCCESS;
}

EXPORT Result cuCtxGetDevice_v2(int *device, void *context) {
    ENTER;
    Object *object = context ? context : current();
    NEED(object, INVALID_CONTEXT);
    *device = object->device;
    return SUCCESS;
}

EXPORT Result cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
    ENTER;
    NEED(current(), INVALID_CONTEXT);
    *lowest = least();
    *highest = greatest();
    return SUCCESS;
}

/* ---- Streams ---- */

static Result create_stream(void **handle, Object *context, Object *green, Count flags, int priority) {
    Object *stream = create(STREAM);
    stream->context = context;
    stream->green = green;
    stream->device = context->device;
    stream->flags = flags;
    stream->priority = priority > least() ? least() : priority < greatest() ? greatest() : priority;
    *handle = stream;
    return SUCCESS;
}

EXPORT Result cuStreamCreateWithPriority(void **handle, Count flags, int priority) {
    ENTER;
    NEED(current() && current()->kind == CONTEXT, INVALID_CONTEXT);
    return create_stream(handle, current(), NULL, flags, priority);
}

EXPORT Result cuStreamDestroy_v2(void *handle) {
    ENTER;
    Object *stream = find(handle, STREAM);
    NEED(stream, INVALID_HANDLE);
    NEED(!stream->green || find(stream->green, GREEN), 709 /* CUDA_ERROR_CONTEXT_IS_DESTROYED */);
    return destroy(handle, STREAM);
}

EXPORT Result cuStreamGetPriority(void *handle, int *priority) { ENTER; STREAM_OF(handle); *priority = stream->priority; return SUCCESS; }
EXPORT Result cuStreamGetFlags(void *handle, Count *flags) { ENTER; STREAM_OF(handle); *flags = stream->flags; return SUCCESS; }
EXPORT Result cuStreamSynchronize(void *handle) { ENTER; STREAM_OF(handle); return SUCCESS; }

EXPORT Result cuStreamGetCtx_v2(void *handle, void **context, void **green) {
    ENTER;
    STREAM_OF(handle);
    *context = stream->context;
    *green = stream->green;
    return SUCCESS;
}

/* ---- Partitions: a CUdevResource is 144 bytes, its kind first, and what it says of multiprocessors at 96 ---- */

typedef struct {
    Count type;
    unsigned char padding[92];
    Count count, smallest, unit, flags;
    unsigned char rest[32];
} Resource;
_Static_assert(sizeof(Resource) == 144, "as in cuda.h");

typedef struct { Count count, coscheduled, preferred, flags, reserved[12]; } Group;

enum { MULTIPROCESSORS = 1, UNIT = 8 };

static void describe(Resource *resource, Count count) {
    memset(resource, 0, sizeof *resource);
    resource->type = count ? MULTIPROCESSORS : 0;
    resource->count = count;
    resource->smallest = resource->unit = UNIT;
}

EXPORT Result cuDeviceGetDevResource(int device, Resource *resource, int type) {
    ENTER;
    NEED(known(device), INVALID_DEVICE);
    NEED(type == MULTIPROCESSORS, INVALID_RESOURCE_TYPE);
    describe(resource, multiprocessors());
    return SUCCESS;
}

EXPORT Result cuGreenCtxGetDevResource(void *green, Resource *resource, int type) {
    ENTER;
    Object *object = find(green, GREEN);
    NEED(object, INVALID_CONTEXT);
    NEED(type == MULTIPROCESSORS, INVALID_RESOURCE_TYPE);
    describe(resource, object->multiprocessors);
    return SUCCESS;
}

/* From CUDA 13.1 on: parts of different sizes. */
EXPORT Result cuDevSmResourceSplit(Resource *parts, Count number, const Resource *whole, Resource *rest, Count flags, Group *groups) {
    ENTER;
    (void)flags;
    Count used = 0;
    for (Count i = 0; i < number; i++) {
        NEED(groups[i].count && groups[i].count % UNIT == 0, INVALID_RESOURCE_CONFIGURATION);
        NEED(used + groups[i].count <= whole->count, INVALID_RESOURCE_CONFIGURATION);
        if (parts) describe(&parts[i], groups[i].count);
        used += groups[i].count;
    }
    if (rest) describe(rest, whole->count - used);
    return SUCCESS;
}

/* Before: equal parts, as many as there are or are wanted. */
EXPORT Result cuDevSmResourceSplitByCount(Resource *parts, Count *number, const Resource *whole, Resource *rest, Count flags, Count wanted) {
    ENTER;
    (void)flags;
    Count each = (wanted + UNIT - 1) / UNIT * UNIT;
    NEED(each && each <= whole->count, INVALID_RESOURCE_CONFIGURATION);
    if (!parts || *number > whole->count / each) *number = whole->count / each;
    for (Count i = 0; parts && i < *number; i++) describe(&parts[i], each);
    if (rest) describe(rest, whole->count - *number * each);
    return SUCCESS;
}

EXPORT Result cuDevResourceGenerateDesc(void **description, Resource *resources, Count number) {
    ENTER;
    NEED(number == 1 && resources[0].type == MULTIPROCESSORS, INVALID_RESOURCE_TYPE);
    Object *object = create(DESCRIPTION);
    object->multiprocessors = resources[0].count;
    *description = object;
    return SUCCESS;
}

EXPORT Result cuGreenCtxCreate(void **green, void *description, int device, Count flags) {
    ENTER;
    Object *described = find(description, DESCRIPTION);
    NEED(described && flags == 1, INVALID_VALUE);
    NEED(known(device), INVALID_DEVICE);
    Object *object = create(GREEN);
    object->device = device;
    object->multiprocessors = described->multiprocessors;
    object->context = &primary[device];
    *green = object;
    return SUCCESS;
}

EXPORT Result cuGreenCtxDestroy(void *green) { ENTER; return destroy(green, GREEN); }
EXPORT Result cuCtxFromGreenCtx(void **context, void *green) { ENTER; NEED(find(green, GREEN), INVALID_CONTEXT); *context = green; return SUCCESS; }

EXPORT Result cuGreenCtxStreamCreate(void **handle, void *green, Count flags, int priority) {
    ENTER;
    Object *object = find(green, GREEN);
    NEED(object, INVALID_CONTEXT);
    NEED(flags == 1 /* non-blocking */, INVALID_VALUE);
    return create_stream(handle, object->context, object, flags, priority);
}

/* ---- How the bindings find functions: the newest version of a name that is not newer than the version asked for ---- */

EXPORT Result cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    (void)flags;
    static void *self;
    if (!self) {
        Dl_info own;
        dladdr((void *)cuInit, &own);
        self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    char newer[128];
    snprintf(newer, sizeof newer, "%s_v2", name);
    *function = version >= 2000 ? dlsym(self, newer) : NULL;
    if (!*function) *function = dlsym(self, name);
    if (status) *status = *function ? 0 : 1;
    if (!*function && getenv("FAKE_TRACE")) fprintf(stderr, "there is no %s\n", name);
    return *function ? SUCCESS : NOT_FOUND;
}
