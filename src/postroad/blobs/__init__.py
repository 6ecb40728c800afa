"""Blobs: bytes too large for a message, in memory, in a directory and on S3."""

from postroad.blobs.port import MAX_BLOB_BYTES, BlobRef, Blobs

__all__ = ["MAX_BLOB_BYTES", "BlobRef", "Blobs"]
