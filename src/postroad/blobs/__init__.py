"""Blobs: bytes too large for a message, in memory, in a directory and on S3."""

from typing import TYPE_CHECKING

from postroad.blobs.directory import DirectoryBlobs as DirectoryBlobs
from postroad.blobs.port import (
    MAX_BLOB_BYTES,
    BlobRef,
    Blobs,
    check_reference as check_reference,
    reference as reference,
)
from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.blobs.s3 import S3Blobs as S3Blobs
else:
    __getattr__ = lazy_names(__name__, {"postroad.blobs.s3": "S3Blobs"})

__all__ = ["MAX_BLOB_BYTES", "BlobRef", "Blobs"]
