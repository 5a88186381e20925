"""What tests of reports share."""

from .trace_processor import trace_processor as trace_processor
