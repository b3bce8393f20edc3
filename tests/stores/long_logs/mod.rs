//! Sliding logs of many entries. Redis keeps them in segments, the embedded store in pages.

mod agreement;
mod segments;
