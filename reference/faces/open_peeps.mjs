// Writes an SVG for each combination of parts of the Open Peeps style: reads a JSON list of
// {key, head, face, facialHair, accessories, skin, hair, clothing} from standard input, writes {key: svg} to standard output.
import { readFileSync } from "node:fs";
import { createAvatar } from "@dicebear/core";
import { openPeeps } from "@dicebear/collection";

const svgs = {};
for (const look of JSON.parse(readFileSync(0, "utf8"))) {
  svgs[look.key] = createAvatar(openPeeps, {
    head: [look.head],
    face: [look.face],
    facialHair: look.facialHair ? [look.facialHair] : [],
    facialHairProbability: look.facialHair ? 100 : 0,
    accessories: look.accessories ? [look.accessories] : [],
    accessoriesProbability: look.accessories ? 100 : 0,
    maskProbability: 0,
    skinColor: [look.skin],
    headContrastColor: [look.hair],
    clothingColor: [look.clothing],
  }).toString();
}
process.stdout.write(JSON.stringify(svgs));
