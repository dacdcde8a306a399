/* A stand-in for libcudart.so.13, with what ggml's CUDA backend calls about streams. It counts the streams that it made
 * itself, so that a test can tell them from lent ones. */
#include <stdlib.h>

static _Thread_local int current;
static int alive;

int cudaSetDevice(int device) { current = device; return 0; }
int cudaGetDevice(int *device) { *device = current; return 0; }

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    *stream = malloc(1);
    __atomic_add_fetch(&alive, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int cudaStreamDestroy(void *stream) {
    free(stream);
    __atomic_sub_fetch(&alive, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int mini_runtime_alive(void) { return alive; }
