/* Lends a thread's own CUDA stream to the llama context that the thread creates.
 *
 * llama.cpp makes the stream of a context with cudaStreamCreateWithFlags() and offers no way to name another one. This
 * library has a function of that name. Loaded with RTLD_GLOBAL before llama.cpp it is the one that llama.cpp calls: it
 * gives out the stream that the calling thread has armed, if there is one, and else passes the call on to the CUDA
 * runtime that the caller is linked with. A stream that was given out is kept in a list until the context gives it
 * back with cudaStreamDestroy(), which does not destroy it: its owner does.
 *
 * It needs no headers of CUDA and links to none of its libraries.
 */
#ifndef __linux__
#error "llama.cpp's calls can be received in this way on Linux only"
#endif

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *Stream;

enum { SUCCESS = 0, NO_RUNTIME = 35 /* cudaErrorInsufficientDriver */, NON_BLOCKING = 1 };
enum { MOST_LENT = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream lent[MOST_LENT];
static int lent_count;

/* What the thread lends, where, and how the calls that came meanwhile ended. */
static _Thread_local struct {
    Stream stream;
    int device;
    unsigned given;
    unsigned passed_on;
} armed;

static int find(Stream stream) {
    for (int i = 0; i < lent_count; i++)
        if (lent[i] == stream) return i;
    return -1;
}

static void *own_base(void) {
    Dl_info own;
    return dladdr((void *)own_base, &own) ? own.dli_fbase : NULL;
}

/* The runtime's function, as the library at the address `caller` sees it. A caller that left this call as its last act
 * (a tail call) hides itself, so runtimes that are loaded anyway are asked too. RTLD_NEXT would not do: it does not
 * search a runtime that was loaded with RTLD_LOCAL, as llama.cpp's is. */
static void *runtime_function(const char *name, void *caller) {
    Dl_info origin;
    const char *libraries[] = {
        dladdr(caller, &origin) ? origin.dli_fname : NULL, "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
    };
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *library = libraries[i] ? dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (!library) continue;
        void *function = dlsym(library, name);
        dlclose(library);
        Dl_info place;
        if (function && dladdr(function, &place) && place.dli_fbase != own_base()) return function;
    }
    return NULL;
}

static int current_device(void *caller) {
    int device = -1;
    int (*get)(int *) = (int (*)(int *))runtime_function("cudaGetDevice", caller);
    return get && get(&device) == SUCCESS ? device : -1;
}

/* Mark the armed stream as given out. It stays armed: a context may take and give back a stream more than once while
 * it is made. */
static int give(void) {
    pthread_mutex_lock(&lock);
    int possible = find(armed.stream) < 0 && lent_count < MOST_LENT;
    if (possible) lent[lent_count++] = armed.stream;
    pthread_mutex_unlock(&lock);
    armed.given += possible;
    return possible;
}

/* From now on the calling thread lends `stream`, while `device` is its current one. */
EXPORT void llamalane_arm(Stream stream, int device) {
    armed.stream = stream;
    armed.device = device;
    armed.given = armed.passed_on = 0;
}

/* Lend no more. Tells how often the stream was given out since, and how many others the runtime made instead. */
EXPORT void llamalane_disarm(unsigned *given, unsigned *passed_on) {
    armed.stream = NULL;
    *given = armed.given;
    *passed_on = armed.passed_on;
}

/* Whether a context holds `stream`. */
EXPORT int llamalane_is_lent(Stream stream) {
    pthread_mutex_lock(&lock);
    int found = find(stream) >= 0;
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORT int cudaStreamCreateWithFlags(Stream *stream, unsigned flags) {
    void *caller = __builtin_return_address(0);
    if (armed.stream) {
        if (flags == NON_BLOCKING && current_device(caller) == armed.device && give()) {
            *stream = armed.stream;
            return SUCCESS;
        }
        armed.passed_on++;
    }
    int (*create)(Stream *, unsigned) =
        (int (*)(Stream *, unsigned))runtime_function("cudaStreamCreateWithFlags", caller);
    return create ? create(stream, flags) : NO_RUNTIME;
}

EXPORT int cudaStreamDestroy(Stream stream) {
    void *caller = __builtin_return_address(0);
    pthread_mutex_lock(&lock);
    int place = find(stream);
    if (place >= 0) lent[place] = lent[--lent_count];
    pthread_mutex_unlock(&lock);
    if (place >= 0) return SUCCESS;
    int (*destroy)(Stream) = (int (*)(Stream))runtime_function("cudaStreamDestroy", caller);
    return destroy ? destroy(stream) : NO_RUNTIME;
}
