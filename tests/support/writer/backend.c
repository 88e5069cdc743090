/* A backend of the NVTX writer interface that writes down what it is given, for the tests of enriched reports.
 *
 * A session NAME becomes the file NAME.nsys-rep, a line per call, its fields apart by tabs:
 *   session  config (line breaks as "; ")
 *   domain   number  name
 *   scope    number  domain  path
 *   stream   number  domain  scope  name
 *   range    stream  begin  end  color (hexadecimal)  text
 *   end
 * What no session of annot calls is "not supported". */

#include <nvtxw3/nvtxw3.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1024
#define PUSHPOP_SIZE (2 * sizeof(int64_t) + 2 * sizeof(uint32_t))

static FILE *file;
static uint64_t domains, scopes, streams, schemas;
static uint64_t schema_flags[MOST];

static nvtxwResultCode_t session_begin(const nvtxwSessionAttributes_t *attr, nvtxwSessionHandle_t *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.nsys-rep", attr->name);
    file = fopen(path, "w");
    if (!file) return NVTXW_RESULT_FAILED;
    domains = scopes = streams = schemas = 0;
    fputs("session\t", file);
    for (const char *at = attr->configString; *at; at++) fputs(*at == '\n' ? "; " : (char[]){*at, 0}, file);
    fputc('\n', file);
    *out = (nvtxwSessionHandle_t)file;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t session_end(nvtxwSessionHandle_t session)
{
    (void)session;
    fputs("end\n", file);
    return fclose(file) ? NVTXW_RESULT_FAILED : NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t domain_register(
    nvtxwSessionHandle_t session, const nvtxwDomainAttributes_t *attr, nvtxDomainHandle_t *out)
{
    (void)session;
    fprintf(file, "domain\t%zu\t%s\n", (size_t)++domains, attr && attr->name ? attr->name : "");
    *out = (nvtxDomainHandle_t)(uintptr_t)domains;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t scope_register(nvtxDomainHandle_t domain, const nvtxScopeAttr_t *attr, uint64_t *out)
{
    *out = NVTX_SCOPE_ID_DYNAMIC_START + ++scopes;
    fprintf(file, "scope\t%zu\t%zu\t%s\n", (size_t)*out, (size_t)(uintptr_t)domain, attr->path);
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t schema_register(
    nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t *attr, uint64_t *out)
{
    (void)domain;
    if (++schemas >= MOST) return NVTXW_RESULT_FAILED;
    schema_flags[schemas] = attr->flags;
    *out = NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START + schemas;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t stream_open(
    nvtxwSessionHandle_t session, const nvtxwStreamAttributes_t *attr, nvtxwStreamHandle_t *out)
{
    (void)session;
    fprintf(file, "stream\t%zu\t%zu\t%zu\t%s\n", (size_t)++streams, (size_t)(uintptr_t)attr->domain,
            (size_t)attr->scopeId, attr->name);
    *out = (nvtxwStreamHandle_t)(uintptr_t)streams;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t stream_close(nvtxwStreamHandle_t stream)
{
    (void)stream;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t event_write(nvtxwStreamHandle_t stream, const nvtxPayloadData_t *payloads, size_t count)
{
    uint64_t schema = payloads[0].schemaId - NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START;
    int64_t times[2];
    uint32_t color;
    if (schema > schemas || !(schema_flags[schema] & NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSHPOP) || count != 2 ||
        payloads[0].size != PUSHPOP_SIZE)
        return NVTXW_RESULT_NOT_SUPPORTED;
    memcpy(times, payloads[0].payload, sizeof times);
    memcpy(&color, (const char *)payloads[0].payload + sizeof times, sizeof color);
    fprintf(file, "range\t%zu\t%lld\t%lld\t%x\t%.*s\n", (size_t)(uintptr_t)stream, (long long)times[0],
            (long long)times[1], color, (int)payloads[1].size, (const char *)payloads[1].payload);
    return NVTXW_RESULT_SUCCESS;
}

static const nvtxwInterface_v2_t table = {
    .SessionBegin = session_begin,
    .SessionEnd = session_end,
    .DomainRegister = domain_register,
    .ScopeRegister = scope_register,
    .SchemaRegister = schema_register,
    .StreamOpen = stream_open,
    .StreamClose = stream_close,
    .EventWrite = event_write,
};

__attribute__((visibility("default"))) nvtxwResultCode_t nvtxwGetInterface(
    nvtxwInterfaceVersion_t version, const void **out)
{
    if (version != NVTXW_INTERFACE_VERSION) return NVTXW_RESULT_INTERFACE_VERSION_NOT_SUPPORTED;
    *out = &table;
    return NVTXW_RESULT_SUCCESS;
}
