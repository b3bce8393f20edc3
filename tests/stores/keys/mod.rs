//! The keys that a store holds: their names, bytes, memory, TTL and eviction.

mod evictions;
mod hashed;
mod long_keys;
mod redis_keys;
