/* What ggml's CUDA backend does about streams: it makes one for each device of a context, when that is made, and
 * destroys it with the context. */
#include <stdlib.h>

int cudaSetDevice(int device);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamDestroy(void *stream);

enum { NON_BLOCKING = 1, MOST_DEVICES = 8 };

typedef struct { void *streams[MOST_DEVICES]; } Context;

/* A context on `count` devices, from `first` on; NULL when the runtime refuses. */
Context *mini_context(int first, int count) {
    Context *context = calloc(1, sizeof *context);
    for (int device = first; device < first + count; device++) {
        cudaSetDevice(device);
        if (cudaStreamCreateWithFlags(&context->streams[device], NON_BLOCKING) != 0) {
            free(context);
            return NULL;
        }
    }
    return context;
}

void *mini_stream(Context *context, int device) { return context->streams[device]; }

void mini_free(Context *context) {
    for (int device = 0; device < MOST_DEVICES; device++)
        if (context->streams[device]) cudaStreamDestroy(context->streams[device]);
    free(context);
}

/* Loading weights without a map: a stream is made and destroyed again before the context makes its own. */
Context *mini_context_after_upload(int device) {
    mini_free(mini_context(device, 1));
    return mini_context(device, 1);
}
