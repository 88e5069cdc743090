// A device type without hardware. With this guard, autograd starts a thread for each of $SILENT_DEVICES devices.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>

namespace {

thread_local c10::DeviceIndex current = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
    c10::Device exchangeDevice(c10::Device device) const override {
        c10::Device before = getDevice();
        current = device.index();
        return before;
    }
    c10::Device getDevice() const override { return c10::Device(type(), current); }
    void setDevice(c10::Device device) const override { current = device.index(); }
    void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
    c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
    c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
    void record(void **event, const c10::Stream &, c10::DeviceIndex, c10::EventFlag) const override {
        *event = nullptr;
    }
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *) const override { return true; }
    c10::DeviceIndex deviceCount() const noexcept override {
        return static_cast<c10::DeviceIndex>(std::atoi(std::getenv("SILENT_DEVICES")));
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

} // namespace
