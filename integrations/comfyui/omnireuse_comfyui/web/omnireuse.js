// Text of the node Omnireuse summary after a run. ComfyUI's frontend draws the pictures of a node by itself, and no text.
import { app } from "../../scripts/app.js";
import { ComfyWidgets } from "../../scripts/widgets.js";

const SHOWN = "told";
const LEAST = [480, 400]; // Of the node.
const PICTURE = 240; // What the frontend keeps for a picture of a node, once it has loaded it.
const BESIDE = 20, AROUND = 16; // Pixels beside a widget, and above and below the text in it.

// The height that all of a box's text takes at this width. The box itself is as high as the frontend makes it.
function heightOf(box, width) {
  const copy = box.cloneNode();
  copy.value = box.value;
  copy.style.cssText = `position: fixed; visibility: hidden; width: ${width}px`;
  for (const side of ["height", "min-height"]) copy.style.setProperty(side, "0", "important");
  document.body.append(copy);
  const height = copy.scrollHeight;
  copy.remove();
  return height;
}

function show(node, text) {
  let widget = node.widgets?.find((each) => each.name === SHOWN);
  if (!widget) {
    widget = ComfyWidgets.STRING(node, SHOWN, ["STRING", { multiline: true }], app).widget;
    widget.options.read_only = true;
    let known = "", height = 0;
    widget.options.getMinHeight = () => { // The frontend gives what is left to the picture.
      const width = Math.max(node.size[0], LEAST[0]) - BESIDE, seen = `${width} ${widget.value}`;
      if (seen !== known) [known, height] = [seen, heightOf(widget.element, width) + AROUND];
      return height;
    };
    widget.serialize = false; // Neither in saved workflows,
    widget.options.serialize = false; // nor among the inputs of a run.
    widget.element.readOnly = true;
  }
  widget.value = text;
  const [width, least] = node.computeSize(), height = least + (node.imgs?.length ? 0 : PICTURE);
  node.setSize?.([Math.max(node.size[0], width, LEAST[0]), Math.max(node.size[1], height, LEAST[1])]);
  node.setDirtyCanvas?.(true, true);
}

app.registerExtension({
  name: "omnireuse.text",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name === "OmnireuseSummary") {
      const executed = nodeType.prototype.onExecuted;
      nodeType.prototype.onExecuted = function (message) {
        executed?.apply(this, arguments);
        if (message?.text) show(this, message.text.join("\n"));
      };
    }
  },
});
