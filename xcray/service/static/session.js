// The key of the caller. It is stored for this tab only and sent only in a header.

const NAME = "xcray-key";

export const savedKey = () => sessionStorage.getItem(NAME);
export const saveKey = (key) => sessionStorage.setItem(NAME, key.trim());
export const forgetKey = () => sessionStorage.removeItem(NAME);

export function authorization() {
  const key = savedKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}
