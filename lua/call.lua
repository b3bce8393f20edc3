
-- The beginning of every call. What the algorithm says, for the epilogue: until when the state lives, as
-- it says itself; whether the call is admitted, what remains, the waits in microseconds from the clock
-- (`reset` is how long the key is of use), by how many units of a bucket `reset` was rounded up, and the
-- text to write behind the beginning of the state, if anything changed.
local lives, allowed, remaining, retry, reset, slack, changed = 0, false, 0, 0, 0, 0, nil
local version = VERSION

