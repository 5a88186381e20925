"""One browser for the tests of pages."""

from tests.report.browsers import chromium as chromium
