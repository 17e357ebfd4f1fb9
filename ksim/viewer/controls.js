// Sends keys, the stick on the page and gamepads to ksim, and shows what is live and what is a replay; viser's page does
// neither. Runs before viser's own script.
(() => {
  // Axis and direction of keys that drive while they are held: forward, leftward, turning left.
  const DRIVING = { KeyW: [0, 1], KeyS: [0, -1], KeyA: [1, 1], KeyD: [1, -1], KeyQ: [2, 1], KeyE: [2, -1] };
  const PRESSES = { Space: "zero", KeyR: "reset", KeyP: "push", KeyK: "pause" };
  // Of the standard layout: A, B, X, Start.
  const BUTTONS = { 0: "zero", 1: "reset", 2: "push", 9: "pause" };
  const DEAD_ZONE = 0.12, SEND_EVERY_MS = 50, NUM_AXES = 3, RADIUS_PX = 48;
  const RELEASED = Array(NUM_AXES).fill(0);
  let socket = null, sent = [...RELEASED], sentAt = 0, timer = null;
  const sources = { keys: RELEASED, stick: RELEASED, pad: RELEASED };

  const clamp = (x) => Math.max(-1, Math.min(1, x));
  const driven = () => RELEASED.map((_, i) => clamp(Object.values(sources).reduce((sum, axes) => sum + axes[i], 0)));
  const post = (message) => {
    if (socket?.readyState !== WebSocket.OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  };
  // Only axes that changed are sent, so that a number that was set otherwise stays when another one is driven.
  const drive = () => {
    const axes = driven();
    showStick(axes);
    if (axes.every((x, i) => x === sent[i])) return;
    const wait = sentAt + SEND_EVERY_MS - performance.now();
    if (wait > 0 && axes.some((x) => x)) {  // a release is never late
      timer ??= setTimeout(() => { timer = null; drive(); }, wait);
      return;
    }
    if (post({ axes: axes.map((x, i) => (x === sent[i] ? null : x)) })) [sent, sentAt] = [axes, performance.now()];
  };
  const connect = () => {
    socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/ksim/controls`);
    // ksim releases what a closed connection drove.
    socket.onopen = () => { sent = [...RELEASED]; drive(); };
    socket.onmessage = (event) => show(JSON.parse(event.data));
    socket.onclose = () => {
      show({ mode: "lost", title: "Not connected", text: "ksim has stopped, or cannot be reached" });
      setTimeout(connect, 1000);
    };
  };

  const held = new Set();
  const setKeys = () => {
    sources.keys = [...RELEASED];
    for (const code of held) sources.keys[DRIVING[code][0]] += DRIVING[code][1];
    drive();
  };
  const isTyping = (element) => element?.closest?.("input, textarea, select, [contenteditable]") != null;
  // In the capturing phase: viser would move the camera by the same keys. The arrow keys stay the camera's.
  window.addEventListener("keydown", (event) => {
    const { code } = event;
    if (!(code in DRIVING || code in PRESSES) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) return;
    event.stopImmediatePropagation();
    event.preventDefault();  // space would press the focused button
    if (event.repeat) return;
    if (code in PRESSES) post({ press: PRESSES[code] });
    else { held.add(code); setKeys(); }
  }, { capture: true });
  window.addEventListener("keyup", ({ code }) => held.delete(code) && setKeys(), { capture: true });
  // A window without focus is not told that a key was released.
  const releaseKeys = () => { held.clear(); setKeys(); };
  window.addEventListener("blur", releaseKeys);
  document.addEventListener("visibilitychange", () => document.hidden && releaseKeys());

  let pressed = {};
  const axis = (value) => {
    const size = Math.max(0, (Math.abs(value ?? 0) - DEAD_ZONE) / (1 - DEAD_ZONE));
    return Math.round(-Math.sign(value ?? 0) * Math.min(1, size) * 100) / 100 + 0;
  };
  const readGamepad = () => {
    requestAnimationFrame(readGamepad);
    const pad = [...navigator.getGamepads()].find((candidate) => candidate?.connected);
    // Pushed forward and left are negative: forward, leftward, and the right stick to turn left.
    sources.pad = pad ? [axis(pad.axes[1]), axis(pad.axes[0]), axis(pad.axes[2])] : RELEASED;
    drive();
    for (const [index, name] of Object.entries(BUTTONS)) {
      const isPressed = pad?.buttons[index]?.pressed ?? false;
      if (isPressed && !pressed[index]) post({ press: name });
      pressed[index] = isPressed;
    }
  };

  const element = (id, parent) => parent.appendChild(Object.assign(document.createElement("div"), { id }));
  let badge = null, stick = null, knob = null, turning = 2, shown = { mode: "lost", title: "Connecting", text: "" };
  const show = (state) => {
    shown = state;
    if (!badge) return;
    const when = state.recorded_s == null ? "" : `recorded ${new Date(1000 * state.recorded_s).toLocaleString()}`;
    document.body.dataset.ksim = state.mode;
    badge.replaceChildren(Object.assign(document.createElement("b"), { textContent: state.title }));
    badge.append([when, state.text].filter(Boolean).join(" \u00b7 "));
    turning = Math.min(2, (state.num_axes ?? 0) - 1);
    stick.hidden = turning < 0;
  };
  // Up is the first axis, and sideways turns; with fewer numbers the last of them.
  const showStick = (axes) => {
    const sideways = turning > 0 ? axes[turning] : 0;
    const reach = RADIUS_PX / Math.max(1, Math.hypot(sideways, axes[0]));
    if (knob) knob.style.transform = `translate(${-reach * sideways}px, ${-reach * axes[0]}px)`;
  };
  const setStick = (event) => {
    const box = stick.getBoundingClientRect();
    const right = (event.clientX - box.left - box.width / 2) / RADIUS_PX;
    const down = (event.clientY - box.top - box.height / 2) / RADIUS_PX;
    const scale = 1 / Math.max(1, Math.hypot(right, down));
    sources.stick = [...RELEASED];
    if (turning > 0) sources.stick[turning] = axis(right * scale);
    sources.stick[0] = axis(down * scale);
    drive();
  };
  const releaseStick = () => { sources.stick = RELEASED; drive(); };
  const addStick = () => {
    stick = element("ksim-stick", document.body);
    stick.title = "Drag to drive: up is forward, sideways turns; let go to stop";
    knob = element("ksim-knob", stick);
    stick.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      stick.setPointerCapture(event.pointerId);
      setStick(event);
    });
    stick.addEventListener("pointermove", (event) => stick.hasPointerCapture(event.pointerId) && setStick(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) stick.addEventListener(end, releaseStick);
  };
  window.addEventListener("DOMContentLoaded", () => {
    badge = element("ksim-badge", document.body);
    badge.setAttribute("role", "status");
    addStick();
    show(shown);
    connect();
    requestAnimationFrame(readGamepad);
  });
})();
