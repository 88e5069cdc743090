/* Prints the nanoseconds of a range (a push and its pop), block by block: words are "registered" or "plain", how
 * many ranges a block has, and how many blocks. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT "features.0 Conv2d [32,3,224,224]f32 |fwd"

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    nvtxDomainHandle_t domain = nvtxDomainCreateA("bench");
    nvtxEventAttributes_t event = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .category = 1,
        .colorType = NVTX_COLOR_ARGB,
        .color = 0xFF4C9F38,
    };
    if (!strcmp(words[1], "registered")) {
        event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        event.message.registered = nvtxDomainRegisterStringA(domain, TEXT);
    } else {
        event.messageType = NVTX_MESSAGE_TYPE_ASCII;
        event.message.ascii = TEXT;
    }
    long ranges = atol(words[2]);
    for (int blocks = atoi(words[3]); blocks; blocks--) {
        double begin = seconds();
        for (long i = 0; i < ranges; i++) {
            nvtxDomainRangePushEx(domain, &event);
            nvtxDomainRangePop(domain);
        }
        printf("%.3f\n", 1e9 * (seconds() - begin) / (double)ranges);
    }
    return 0;
}
