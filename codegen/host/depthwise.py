"""Code for depthwise convolution: the direct convolution with register tiles of one channel and many positions."""

from __future__ import annotations

from superkernel.codegen.host.conv import emit_conv
from superkernel.codegen.host.emitters import Emitter

EMIT: dict[str, Emitter] = {"host.conv.depthwise": emit_conv}
