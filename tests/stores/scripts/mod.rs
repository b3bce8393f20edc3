//! Lua scripts that are compared with other scripts or run by hand.

mod by_hand;
mod usual_buckets;
