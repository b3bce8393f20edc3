// The traffic that a visitor can choose. A story sets the limit as well, so that one famous failure shows.

export const TRAFFIC = {
  edge: {
    limit: { threshold: "5", period: "3s", burst: "" },
    sentence: "The burst around a window’s edge: a client makes four calls just before a fixed window ends, and five just after. Nine pass within a second, where five are allowed in three.",
  },
  retries: {
    limit: { threshold: "5", period: "3s", burst: "" },
    sentence: "The thundering retry: fifteen clients come back at the moment the window opens. Five pass and ten collide again, every time.",
  },
  leak: {
    limit: { threshold: "5", period: "5s", burst: "10" },
    sentence: "The slow leak: three calls come where two are allowed. A burst of ten hides it for twenty seconds, then every third call is rejected.",
  },
  clicks: { sentence: "Press Call: the five algorithms decide the same call." },
  steady: { sentence: "Steady calls, a little more often than the limit admits." },
  bursts: { sentence: "Bursts of twice the threshold, with pauses." },
  hammering: { sentence: "A client that calls as fast as it can." },
};

/** Returns the settings that the address of the page names; without any, the first story. */
export function fromAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.search));
  const traffic = given.traffic in TRAFFIC ? given.traffic : "edge";
  const named = ["threshold", "period", "burst", "rule"].filter((name) => name in given);
  return { ...TRAFFIC[traffic].limit, ...Object.fromEntries(named.map((name) => [name, given[name]])), traffic };
}

/** Returns the address of a page with these settings. */
export function addressOf({ threshold, period, burst, traffic, rule }) {
  const query = new URLSearchParams({ traffic, threshold, period });
  if (burst.trim()) query.set("burst", burst.trim());
  if (rule && rule !== "none") query.set("rule", rule);
  return `${location.origin}/?${query}`;
}
