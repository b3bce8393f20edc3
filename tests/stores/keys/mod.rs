//! The keys that a store holds: their names, bytes, memory, TTL and eviction.

mod evictions;
mod long_keys;
mod redis_keys;
