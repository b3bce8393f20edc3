//! Lua scripts that are run by hand.

mod by_hand;
