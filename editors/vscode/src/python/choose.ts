// Which Python runs the server and which has the user's torch. One, where one can be both.

import { type Hints, type Place, serverPlaces, workerPlaces } from "./places";
import { type Probed, described, probe } from "./probe";

/** The oldest Python that the server runs on (pyproject.toml, requires-python). */
export const OLDEST: readonly [number, number] = [3, 11];

/** An interpreter that was taken, and why. */
export interface Taken extends Place {
  readonly probed: Probed;
}

/** An interpreter that was looked at, and what came of it. */
export interface Looked extends Place {
  readonly verdict: string;
}

export interface Choice {
  readonly server: Taken | undefined;
  readonly worker: Taken | undefined;
  readonly looked: readonly Looked[];
}

type Ask = (path: string) => Promise<Probed>;

/** Looks at interpreters until both are found. Each is asked once. */
export async function choose(hints: Hints, ask: Ask = probe): Promise<Choice> {
  const looked: Looked[] = [];
  const known = new Map<string, Promise<Probed>>();
  const asked = (path: string): Promise<Probed> => {
    const answer = known.get(path) ?? ask(path);
    known.set(path, answer);
    return answer;
  };

  const first = async (role: string, places: readonly Place[], lack: (probed: Probed) => string | undefined) => {
    for (const place of places) {
      try {
        const probed = await asked(place.path);
        const missing = lack(probed);
        looked.push({ ...place, verdict: `${role}: ${described(probed)}${missing === undefined ? ", taken" : `: ${missing}`}` });
        if (missing === undefined) return { ...place, probed };
      } catch (error) {
        looked.push({ ...place, verdict: `${role}: ${error instanceof Error ? error.message : String(error)}` });
      }
    }
    return undefined;
  };

  const worker = await first("torch", workerPlaces(hints), (probed) => (probed.torch === null ? "not taken" : undefined));
  const server = await first("server", serverPlaces(hints, worker), (probed) =>
    isNewEnough(probed) ? undefined : `HIERA needs ${OLDEST.join(".")} or newer`,
  );
  return { server, worker, looked };
}

function isNewEnough(probed: Probed): boolean {
  const [major, minor] = probed.version;
  return major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1]);
}
