"""Timed blocks: the same code times the reference in the judge and the candidate in its own process."""

import gc
import time

import torch

FLUSH_FACTOR = 4
EMPTY_PAIRS = 3
LEAST_US = 1e-3  # Two events may fall into one tick of the clock, and a time of nothing is taken for a forgery.
DEFAULT_L2_BYTES = 64 << 20


class Clock:
    """Times calls one by one, each with a cold L2 and a full queue in front of it.

    The flush (write and read of four times the L2) runs before the start event, so its time is not
    counted, and while it runs the CPU issues the call: launch latency is hidden for both sides alike.
    """

    def __init__(self, device):
        self.device = device
        self.cuda = device.type == "cuda"
        if self.cuda:
            properties = torch.cuda.get_device_properties(device)
            self.l2_bytes = getattr(properties, "L2_cache_size", 0) or DEFAULT_L2_BYTES
            self._buffer = torch.zeros(FLUSH_FACTOR * self.l2_bytes // 4, dtype=torch.int32, device=device)
            self._sink = torch.zeros((), dtype=torch.int64, device=device)

    def flush(self):
        """Push everything else out of L2, and give L2 set aside for one process back."""
        if self.cuda:
            from _hiera_worker import cudart

            cudart.reset_persisting_l2()
            self._buffer.add_(1)
            torch.sum(self._buffer, dim=0, out=self._sink)

    def block(self, call, sets, keep=False):
        """Time `call(arguments)` once for each entry of `sets`.

        Returns:
            Microseconds of every call, what two events cost included, and what the calls returned if `keep`.
        """
        times, kept, pairs = [], [], []
        enabled = gc.isenabled()
        # Fixed beforehand: a call that leaves another stream or device as the current one must not move the events.
        stream = torch.cuda.current_stream(self.device) if self.cuda else None
        gc.disable()
        try:
            for arguments in sets:
                if self.cuda:
                    self.flush()
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record(stream)
                    result = call(arguments)
                    end.record(stream)
                    pairs.append((start, end))
                else:
                    begin = time.perf_counter()
                    result = call(arguments)
                    times.append((time.perf_counter() - begin) * 1e6)
                if keep:
                    kept.append(result)
                del result
            if self.cuda:
                torch.cuda.synchronize(self.device)
                times = [max(start.elapsed_time(end) * 1e3, LEAST_US) for start, end in pairs]
        finally:
            if enabled:
                gc.enable()
        return times, kept

    def plain(self, call, sets, count):
        """Make `count` calls with nothing between them, then wait for the device.

        Returns:
            Microseconds a call the host took to issue them.
        """
        enabled = gc.isenabled()
        gc.disable()
        try:
            begin = time.perf_counter()
            for number in range(count):
                call(sets[number % len(sets)])
            issued = (time.perf_counter() - begin) * 1e6 / count
            if self.cuda:
                torch.cuda.synchronize(self.device)
        finally:
            if enabled:
                gc.enable()
        return issued

    def empty_us(self):
        """Microseconds between two events with nothing between them, now: 0 where no events are used.

        Taken beside the calls, and for both sides by the judge alone: two processes that each took it when they began
        differed by most of a microsecond, and the same kernel was faster than itself.
        """
        if not self.cuda:
            return 0.0
        times, _ = self.block(lambda _arguments: None, [None] * EMPTY_PAIRS)
        return sorted(times)[EMPTY_PAIRS // 2]
