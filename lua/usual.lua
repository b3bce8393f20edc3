-- Decides equal calls of a bucket in its usual state: its key is not blocked, the rate is the one of the state, and no
-- unit was leased and no charge can be settled. Most calls are of this kind. Does what `bucket.lua` does for them,
-- without its other cases. The runtime computes the rest of the reply from the level.

--@include prelude, bucket, several

-- The capacities, tokens and drains of the buckets that do not lease, by limit, and whether all limits are of this
-- kind.
local capacities, tokens, drains, are_all_buckets = {}, {}, {}, true
for limit = 1, #limits do
  local decide, burst, token, drain, _, reserve = unpack_list(limits[limit])
  if decide == bucket and not reserve then
    capacities[limit], tokens[limit], drains[limit] = burst * token, token, drain
  else
    are_all_buckets = false
  end
end

-- Decides `count` calls of a bucket whose value is `state`. Returns the reply to their entry, see `batch.lua`;
-- nothing if the bucket is in another state.
local function decide_usual(limit, key, state, cost, count)
  local version, lives, blocked, at, level, old_token, old_drain = unpack('>I1I4I7I7I7I7I7', state)
  local token, drain = tokens[limit], drains[limit]
  if version ~= 8 or blocked > clock or old_token ~= token or old_drain ~= drain or at > clock then return end
  level = level - (clock - at) * drain
  if level < 0 then level = 0 end
  local charge, left, admitted = cost * token, capacities[limit] - level, 0
  if charge <= left then
    admitted = count == 1 and 1 or math.min(count, (left - left % charge) / charge)
    level = level + admitted * charge
    local reset = level / drain
    if lives * 4000000 > clock + reset + 1001 and not given then
      call('SETRANGE', key, '12', pack('>I7I7', clock, level))
    else
      local changed = pack('>I7I7I7I7', clock, level, token, drain)
      reset = math.ceil(reset)
      --@inline write_state
    end
  end
  return pack('>I1I4I7', 2, admitted, level)
end
