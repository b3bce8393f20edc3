-- Ends a call: writes what the algorithm has decided, and returns the reply.
--
-- key, given, clock  as the script received them
-- block              blocks the key for as many microseconds, unless its block ends later; 2^53 - 1 unblocks it; nil
--                    changes nothing
--
-- The other arguments are the results of an algorithm. An algorithm returns nothing if the value of the key is not
-- its state, or nil and another error. While the key is blocked, it rejects calls, and everything else goes on.
--
-- allowed    whether the call is admitted
-- remaining  the units that are left, 0 while the key is blocked; of a `peek` that counts them, the units in use
-- retry      microseconds from `clock` until the limit admits the same call
-- reset      microseconds from `clock` until the key is as if it had never been used
-- slack      the units of a bucket by which `reset` was rounded up; 2^53 - 1 if `reset` is a wait that later calls
--            at the same time do not change
-- version    the version of the state
-- lives      the end of the TTL in the state
-- blocked    the time until which the key is blocked, or 0
-- changed    the new state after its beginning; nil if the call changes nothing
-- receipt    the birth of the state (7) and the place of the charge (7), if the call needs them; otherwise nil
--
-- Reply      string of 36 bytes: clock (7); 0 if rejected, 1 if allowed, 2 if the key is blocked, and 3 if it is
--            blocked and the limit also rejects the call at the end of the block (1); remaining (7); retry (7);
--            reset (7); slack (7). Then the receipt, if there is one. Or an error
local function answer(
  call, pack, key, clock, given, block,
  allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
)
  if allowed == nil then return { err = remaining or 'BADSTATE not the state of a rate limit' } end
  -- The reply is about the key as it was.
  local rest = blocked - clock
  if block == 9007199254740991 then
    if blocked > 0 then blocked, lives, changed = 0, 0, changed or '' end
  elseif block and block > rest then
    blocked, lives, changed = clock + block, 0, changed or ''
  end
  --@inline write_state
  local verdict = allowed and 1 or 0
  if rest > 0 then
    if not allowed then verdict, retry = retry > rest and 3 or 2, math.max(retry, rest) end
    reset = math.max(reset, rest)
  end
  local reply = pack('>I7I1I7I7I7I7', clock, verdict, remaining, retry, reset, slack)
  if receipt then reply = reply .. receipt end
  return reply
end
